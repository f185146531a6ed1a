"""One run as Hydra asks for it: in this process, or wherever a launcher has it run.

What trains takes seconds to import. It is imported once the configuration was looked at.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from experiments.plan.identity import plain
from experiments.plan.messages import is_of_hydra, sentence
from experiments.plan.part import check_start, make_part
from experiments.runs.folder_lock import HeldError, hold, hold_alone
from experiments.runs.records import check_free
from experiments.runs.resume import check_resumable
from experiments.runs.study import (
    RunOutcome,
    Standing,
    clear,
    read_record,
)
from experiments.runs.trackers import tracker
from host import commands
from host.errors import Terminated, UserError
from host.output import limit_reached
from host.processes import die_with_parent

if TYPE_CHECKING:
    from experiments.real.network import WorkersNetwork
    from experiments.real.peers import Peers


def run_job(config: DictConfig, peers: Peers | None = None) -> RunOutcome:
    """Run `config`, with the processes of `peers` if torchrun or srun has started some.

    An outcome "refused" says that nothing was run, because of what `config` asks for; "held", that
    another process runs it.
    """
    commands.check_stop()
    hydra = HydraConfig.get()
    folder, overrides = Path(hydra.runtime.output_dir), hydra.overrides.task
    try:
        if peers is not None:
            from experiments.runs.peer_run import run_as_peer

            return RunOutcome(status=run_as_peer(config, folder, overrides, peers))
        if hydra.mode == RunMode.MULTIRUN:
            return _run_of_study(config, folder, overrides, Path(hydra.sweep.dir))
        _remove_empty(folder)  # its record makes it, and Ctrl-C may come before there is one
        return RunOutcome(status=_run(config, folder, overrides))
    except HeldError as error:
        return RunOutcome(status="held", reason=str(error))
    except UserError as error:
        _remove_empty(folder)
        return RunOutcome(status="refused", reason=str(error))
    except Terminated:  # by torchrun, when another worker has refused what is asked for
        _remove_empty(folder)
        raise
    except Exception as error:
        if isinstance(error, OSError) and (said := limit_reached(error)) is not None:
            return RunOutcome(status="refused", reason=said)
        if not is_of_hydra(error):
            raise
        _remove_empty(folder)  # a value that stands for another is looked up once it is read
        return RunOutcome(status="refused", reason=sentence(error))


def _remove_empty(folder: Path) -> None:
    """Hydra has made it; if it is not empty, or where this process works, it is not ours."""
    with suppress(OSError):
        if not folder.samefile(Path.cwd()):
            folder.rmdir()


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
        return RunOutcome(status=_run(config, folder, overrides, study))


def _run(
    config: DictConfig, folder: Path, overrides: Sequence[str], study: Path | None = None
) -> str:
    """See `experiments.runs.run.run`. A run of no study holds its folder itself."""
    check_before_imports(config)
    check_free(folder)
    if config.resume is not None and "process_group" in config.backend:
        num_processes = 1 if _is_simulated(config) else config.workers
        check_resumable(plain(config), Path(str(config.resume)), num_processes)
    network = _network(config)
    try:
        with commands.importing():
            from experiments.runs.run import run
        with hold_alone(folder) if study is None else nullcontext():
            check_free(folder)  # still
            return run(config, folder, overrides, study, network=network)
    finally:
        if network is not None:
            network.end()


def check_before_imports(config: DictConfig) -> None:
    """Raise `UserError` for what no run can have, as far as it needs no torch to be seen."""
    check_start(config)
    if config.tracker is not None:
        tracker.check(config.tracker)
    is_read = _is_simulated(config) and config.profile is not None
    if is_read and not Path(str(config.profile)).is_file():
        raise UserError(
            f"profile={config.profile} cannot be read (there is no such file): make one by "
            "python -m experiments.calibrate"
        )


def _network(config: DictConfig) -> WorkersNetwork | None:
    """That of real workers, begun before what trains is imported; None for simulated ones."""
    if _is_simulated(config):
        return None
    with commands.importing():
        from experiments.real.network import WorkersNetwork
    return WorkersNetwork(make_part(config.net, "net"), config.workers)


def _is_simulated(config: DictConfig) -> bool:
    return "process_group" in config.backend and config.backend.process_group is None
