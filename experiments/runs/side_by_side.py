"""How many runs of a sweep may share this host.

Measured times are the point of a run with real workers, and a run beside it would take some of
them. Simulated workers are one process and one core a run: several fit.
"""

import os
from collections.abc import Iterable

from omegaconf import DictConfig

from experiments.runs.study import StudyRun
from host.errors import UserError


def needs_host(config: DictConfig) -> bool:
    """Whether a run of `config` measures what another run beside it would change: all but simulated
    workers on CPUs.
    """
    backend = config.backend
    is_simulated = backend.get("process_group", "") is None
    return not is_simulated or (config.device or backend.device) != "cpu"


def jobs_at_once(config: DictConfig) -> int:
    """The runs of `config` that may share this host: a core for each, or one."""
    if needs_host(config):
        return 1
    sharing = config.cluster.sharing
    if not isinstance(sharing, int) or sharing < 1:
        return 1  # each run says what is wrong with it
    return max(1, len(os.sched_getaffinity(0)) // sharing)


def check_side_by_side(runs: Iterable[StudyRun], launcher: DictConfig) -> None:
    """Raise `UserError` where joblib would run side by side what must not; other launchers have
    hosts of their own to share out.
    """
    if launcher.get("n_jobs", 1) != 1:
        refuse_alone(sum(run.needs_host for run in runs), "set hydra.launcher.n_jobs=1")


def refuse_alone(num_alone: int, advice: str) -> None:
    """Raise `UserError`, with this advice, where so many runs that need this host would share it,
    if they are any.
    """
    if num_alone:
        raise UserError(
            f"{num_alone} of the runs measure times, of which runs beside them on this host would "
            f"take some: {advice}, or simulate them by backend=sim"
        )
