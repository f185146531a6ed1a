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
from experiments.errors import Terminated, UserError
from experiments.messages import sentence, usage
from experiments.resume import with_saved_overrides
from experiments.run import run


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    statuses: list[str] = []
    started: list[bool] = []

    @hydra.main(version_base="1.3", config_path=str(CONFIG_DIR), config_name="config")
    def app(config: DictConfig) -> None:
        started.append(True)
        try:
            hydra_config = HydraConfig.get()
            folder = Path(hydra_config.runtime.output_dir)
            statuses.append(run(config, folder, hydra_config.overrides.task))
        except UserError as error:
            sys.exit(_refuse(str(error)))  # not an Exception: Hydra would add lines of its own

    if {"-h", "--help"} & set(sys.argv[1:]):
        print(usage())
        return 0
    signal.signal(signal.SIGTERM, _terminate)
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises, and the sentence is ours
    try:
        sys.argv[1:] = normalize_overrides(with_saved_overrides(sys.argv[1:]))
        app()
    except UserError as error:
        return _refuse(str(error))
    except (HydraException, OmegaConfBaseException) as error:
        return _refuse(sentence(error))
    except OSError as error:
        if started:
            raise
        return _refuse(
            f"the run's folder cannot be made ({error}): choose another hydra.run.dir=..."
        )
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Terminated:
        return 128 + signal.SIGTERM
    return 1 if "failed" in statuses else 0


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def _refuse(reason: str) -> int:
    print(f"error: {reason}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
