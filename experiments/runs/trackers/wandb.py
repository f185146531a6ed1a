"""Weights & Biases: a run of the project "relaxlab".

Offline unless WANDB_MODE=online is set: `wandb sync` sends what is in the run's folder. So no run
waits for a server, or asks for a key.
"""

import os

import wandb

from experiments.runs.summary import Summary
from experiments.runs.trackers.tracker import PROJECT, TrackedRun, Tracker, numbers, results
from experiments.training.metrics import MetricsRow

_START_LIMIT_S = 20


class WandB:
    """A run there."""

    def __init__(self, run: TrackedRun) -> None:
        os.environ.setdefault("WANDB_MODE", "offline")
        self._run = wandb.init(
            project=PROJECT,
            name=run.folder.name,
            dir=str(run.folder),
            config=dict(run.config),
            settings=wandb.Settings(silent=True, console="off", init_timeout=_START_LIMIT_S),
        )
        self._run.define_metric("*", step_metric="time_s")

    def log(self, row: MetricsRow) -> None:
        """Its numbers and its step; a process of wandb's sends them. As wandb's own step it would
        be left out where an evaluation is of an earlier step than the row before, as of async.
        """
        self._run.log({**numbers(row), "step": row.step})

    def finish(self, summary: Summary) -> None:
        """The results as the run's summary, and its status."""
        self._run.summary.update(results(summary))
        self._run.summary.update({"status": summary.status, "reason": summary.reason})
        self._run.finish(exit_code=0 if summary.status == "completed" else 1)


def start(run: TrackedRun) -> Tracker:
    """Open a run."""
    return WandB(run)
