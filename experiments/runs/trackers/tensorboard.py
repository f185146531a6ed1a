"""TensorBoard: event files in the run's folder, for `tensorboard --logdir results/runs`.

Its axis "relative" is the training clock: an event's wall time is when training began, and the
seconds on that clock.
"""

import shutil

from torch.utils.tensorboard import SummaryWriter

from experiments.plan.identity import config_text
from experiments.runs.summary import Summary
from experiments.runs.trackers.tracker import TrackedRun, Tracker, numbers, results
from experiments.training.metrics import MetricsRow


class TensorBoard:
    """The event files of one run."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = run
        folder = run.folder / "tensorboard"
        shutil.rmtree(folder, ignore_errors=True)  # of a run that goes on here, told again
        self._writer = SummaryWriter(str(folder))
        text = config_text(run.config)
        self._writer.add_text("configuration", f"```yaml\n{text}```", walltime=run.began_s)

    def log(self, row: MetricsRow) -> None:
        """A scalar for each number."""
        for name, value in numbers(row).items():
            self._writer.add_scalar(name, value, row.step, self._run.began_s + row.time_s)

    def finish(self, summary: Summary) -> None:
        """The results as scalars of their own, and the status as a text."""
        for name, value in results(summary).items():
            self._writer.add_scalar(f"result/{name}", value, summary.steps)
        self._writer.add_text("status", f"{summary.status}: {summary.reason or ''}")
        self._writer.close()


def start(run: TrackedRun) -> Tracker:
    """Begin to write."""
    return TensorBoard(run)
