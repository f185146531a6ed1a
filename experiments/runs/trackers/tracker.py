"""A run told to a tool that its user knows: TensorBoard, MLflow or Weights & Biases.

The run's own record is complete without it. So a tracker that fails says so once, and the run goes
on.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from experiments.runs.summary import Summary
from experiments.training.metrics import MetricsRow
from host.bounded_yaml import flat
from host.errors import UserError, first_line

TRACKERS = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
"""The package that each imports. The names are those of modules here, and of extras, too."""

PROJECT = "relaxlab"
"""What the runs belong to, where a tracker sorts them."""


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """What a tracker is told of a run before it has numbers."""

    folder: Path
    config: Mapping[str, Any]
    """Resolved."""
    rows: Sequence[MetricsRow] = ()
    """Of the run that it goes on with."""
    began_s: float = field(default_factory=time.time)
    """When its training clock stood at 0, by the wall clock."""

    def options(self) -> dict[str, Any]:
        """Every value of the configuration by its path, as "algo.interval"."""
        return dict(flat(self.config))


class Tracker(Protocol):
    """One run in one tool. Its module has `start`, which makes it. All of them raise whatever the
    tool's library does.
    """

    def log(self, row: MetricsRow) -> None:
        """Tell one row, without waiting for a server."""
        ...

    def finish(self, summary: Summary) -> None:
        """Tell what the run came to, and end within a minute."""
        ...


class Tracking:
    """The tracker of a run, if it has one: `name` is a choice of `TRACKERS`, or None.

    Raises:
        UserError: there is none of that name, or its package is missing.
    """

    def __init__(self, name: str | None, run: TrackedRun) -> None:
        if name is not None:
            check(name)
        self._name = name
        self._run = run
        self._tracker: Tracker | None = None
        self._was_opened = False

    def start(self) -> None:
        """Open it, unless that was done, and tell the rows that the run goes on from.

        The first row does so, too. Some trackers have threads, and take seconds to open: call it
        once processes are forked, and before a clock runs.
        """
        if self._name is None or self._was_opened:
            return
        self._was_opened = True
        self._do(self._open)
        for row in self._run.rows:
            self.log(row)

    def log(self, row: MetricsRow) -> None:
        """Tell a row."""
        self.start()
        if tracker := self._tracker:
            self._do(lambda: tracker.log(row))

    def finish(self, summary: Summary) -> None:
        """Tell the end; nothing is told afterwards."""
        if tracker := self._tracker:
            self._do(lambda: tracker.finish(summary))
        self._tracker = None

    def _open(self) -> None:
        module = importlib.import_module(f"experiments.runs.trackers.{self._name}")
        self._tracker = module.start(self._run)

    def _do(self, deed: Callable[[], None]) -> None:
        try:
            deed()
        except Exception as error:  # what a stranger's library raises, nobody can list
            self._tracker = None
            said = first_line(error)
            print(f"tracker={self._name} failed, and the run goes on without: {said}", flush=True)


def check(name: str) -> None:
    """Raise `UserError` unless there is such a tracker and its package is installed."""
    if name not in TRACKERS:
        raise UserError(f"tracker must be one of {', '.join(TRACKERS)}, or null, got {name}")
    if importlib.util.find_spec(TRACKERS[name]) is None:
        raise UserError(f"tracker={name} needs a package: pip install 'relaxlab[{name}]'")


def numbers(row: MetricsRow) -> dict[str, float]:
    """A row's numbers by the names of its fields."""
    return {
        name: float(value)
        for name, value in asdict(row).items()
        if value is not None and name not in ("kind", "step")
    }


def results(summary: Summary) -> dict[str, float]:
    """A summary's numbers by the names of its fields."""
    return {
        name: float(value)
        for name, value in asdict(summary).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
