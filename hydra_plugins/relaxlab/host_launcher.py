"""Hydra's launcher for this host: simulated runs side by side, all others one after the other."""

import math
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.utils import (
    JobReturn,
    JobStatus,
    configure_log,
    filter_overrides,
    run_job,
    setup_globals,
)
from omegaconf import DictConfig, open_dict

from experiments.plan.identity import plain
from experiments.runs.side_by_side import fitting, needs_host, run_groups
from host import commands
from host.cores import usable_cores
from host.errors import Failure, UserError, first_line


@dataclass(frozen=True, kw_only=True)
class _Job:
    """One run: its place among those of this launch, the words that make it, and what they make."""

    place: int
    overrides: Sequence[str]
    config: DictConfig

    @property
    def size(self) -> float:
        """How long it takes, relative to others."""
        numbers = (self.config[key] for key in ("workers", "batch_size", "max_steps"))
        return math.prod(n if isinstance(n, int) and n > 0 else 1 for n in numbers)


class HostLauncher(BasicLauncher):
    """As Hydra's own `BasicLauncher`, but for runs of simulated workers on CPUs: each training is a
    child process with its share of the cores, and the runs that it serves follow it there.

    Args:
        at_once: how many trainings are at work at once; None: one on each core, within memory.
    """

    def __init__(self, at_once: int | None = None) -> None:
        super().__init__()
        self._at_once = at_once

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the jobs; returns their results in order. Raises `Failure` where a process died."""
        if len(job_overrides) == 1 or (self._at_once or usable_cores()) == 1:
            return super().launch(job_overrides, initial_job_idx)
        setup_globals()
        jobs = self._jobs(job_overrides, initial_job_idx)
        together = [job for job in jobs if not needs_host(job.config)]
        at_once, groups = self._shared(together) if len(together) > 1 else (1, [])
        if at_once == 1 or len(groups) == 1:
            return super().launch(job_overrides, initial_job_idx)
        returns = self._side_by_side(groups, at_once)
        for job in jobs:
            if job.place not in returns:
                index = initial_job_idx + job.place
                [returns[job.place]] = super().launch([job.overrides], index)
        return [returns[job.place] for job in jobs]

    def _jobs(self, job_overrides: Sequence[Sequence[str]], first: int) -> list[_Job]:
        assert self.hydra_context is not None and self.config is not None
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        jobs: list[_Job] = []
        for place, overrides in enumerate(job_overrides):
            config = self.hydra_context.config_loader.load_sweep_config(
                self.config, list(overrides)
            )
            with open_dict(config):
                config.hydra.job.id = config.hydra.job.num = first + place
            jobs.append(_Job(place=place, overrides=overrides, config=config))
        return jobs

    def _shared(self, jobs: Sequence[_Job]) -> tuple[int, list[list[_Job]]]:
        """How many trainings may be at work at once, and the jobs by training."""
        with commands.importing():
            from experiments.plan.compose import of_app
            from experiments.simulated.kept_trainings import grouped
        configs = [plain(of_app(job.config)) for job in jobs]
        groups = [[jobs[place] for place in places] for places in grouped(configs)]
        return self._at_once or min(fitting(configs), len(groups)), groups

    def _side_by_side(self, groups: list[list[_Job]], at_once: int) -> dict[int, JobReturn]:
        """What the jobs came to, by place."""
        returns: dict[int, JobReturn] = {}
        run_groups(groups, self._run, at_once, returns.update, [group[0].size for group in groups])
        return returns

    def _run(self, job: _Job) -> tuple[int, JobReturn]:
        """One run, in a child process."""
        assert self.hydra_context is not None and self.task_function is not None
        print(f"#{job.config.hydra.job.num} : {' '.join(filter_overrides(job.overrides))}")
        returned = run_job(
            hydra_context=self.hydra_context,
            task_function=self.task_function,
            config=job.config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        error = returned._return_value
        if returned.status is JobStatus.FAILED and not isinstance(error, UserError | Failure):
            traceback.print_exception(error)
            returned.return_value = Failure(f"{type(error).__name__}: {first_line(error)}")
        return job.place, returned
