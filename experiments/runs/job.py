"""One run as Hydra asks for it: in this process, or wherever a launcher has it run."""

import multiprocessing
from collections.abc import Sequence
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from experiments.real.peers import Peers
from experiments.runs.folder_lock import HeldError, hold
from experiments.runs.peer_run import run_as_peer
from experiments.runs.run import run
from experiments.runs.study import (
    RunOutcome,
    Standing,
    clear,
    read_record,
)
from host import commands
from host.errors import UserError
from host.output import limit_reached
from host.processes import die_with_parent


def run_job(config: DictConfig, peers: Peers | None = None) -> RunOutcome:
    """Run `config`, with the processes of `peers` if torchrun or srun has started some.

    An outcome "refused" says that nothing was run, because of what `config` asks for; "held", that
    another process runs it.
    """
    commands.check_interrupt()
    hydra = HydraConfig.get()
    folder, overrides = Path(hydra.runtime.output_dir), hydra.overrides.task
    try:
        if peers is not None:
            return RunOutcome(status=run_as_peer(config, folder, overrides, peers))
        if hydra.mode == RunMode.MULTIRUN:
            return _run_of_study(config, folder, overrides, Path(hydra.sweep.dir))
        return RunOutcome(status=run(config, folder, overrides))
    except HeldError as error:
        return RunOutcome(status="held", reason=str(error))
    except UserError as error:
        return RunOutcome(status="refused", reason=str(error))
    except OSError as error:
        if (said := limit_reached(error)) is None:
            raise
        return RunOutcome(status="refused", reason=said)


def _run_of_study(
    config: DictConfig, folder: Path, overrides: Sequence[str], study: Path
) -> RunOutcome:
    """A cluster may start one run twice: after it was preempted, or by two commands."""
    launcher = multiprocessing.parent_process()
    if launcher is not None and launcher.pid is not None:  # joblib's workers would go on alone
        die_with_parent(launcher.pid)
    with hold(folder):
        record = read_record(folder, is_held=False)
        if record is not None and record.standing is Standing.DONE:
            return RunOutcome(status=record.status, reason=record.reason)
        if record is not None and record.standing is Standing.INTERRUPTED:
            clear(folder)
        return RunOutcome(status=run(config, folder, overrides, study))
