"""The app: `python -m experiments +algo=bytegrad net=slow_tcp`.

Exit codes: 0 done (a run that diverged is a result), 1 a run failed, 2 nothing was run because of
what the command asks for, 128 + the signal that stopped it.
"""

import os
import signal
import sys
from pathlib import Path
from types import FrameType

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from experiments.config import CONFIG_DIR, normalize_overrides
from experiments.errors import UserError
from experiments.run import run


class TerminatedError(BaseException):
    """SIGTERM has come."""


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    statuses: list[str] = []

    @hydra.main(version_base="1.3", config_path=str(CONFIG_DIR), config_name="config")
    def app(config: DictConfig) -> None:
        statuses.append(run(config, Path(HydraConfig.get().runtime.output_dir)))

    signal.signal(signal.SIGTERM, _terminate)
    sys.argv[1:] = normalize_overrides(sys.argv[1:])
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises, and the sentence is ours
    try:
        app()
    except (UserError, HydraException, OmegaConfBaseException) as error:
        print(f"error: {_sentence(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except TerminatedError:
        return 128 + signal.SIGTERM
    return 1 if "failed" in statuses else 0


def _terminate(number: int, frame: FrameType | None) -> None:
    raise TerminatedError


def _sentence(error: Exception) -> str:
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
