"""A run as a person watches it: a live line on a terminal, plain lines elsewhere."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from io import StringIO
from typing import Any, Protocol, Self

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from experiments.tasks.target import LOSS
from experiments.training.metrics import MetricsRow
from host.command_line.console import Console

UNKNOWN = "-"
TOLD_EVERY_S = 0.5


class ProgressView(AbstractContextManager, Protocol):
    """Shows rows of metrics as they come."""

    def show(self, row: MetricsRow) -> None:
        """Take one row."""
        ...


_on_share: Callable[[float], None] | None = None
"""Who hears how much of a run is done, where this process runs beside others that print to the same
output.
"""


@contextmanager
def one_of_several(on_share: Callable[[float], None] = lambda share: None) -> Iterator[None]:
    """Within is a run beside others: what it prints comes in one piece in the end, and of its
    progress `on_share` alone is told, twice a second at the most: the share of its steps.
    """
    global _on_share
    before, _on_share = _on_share, on_share
    told = StringIO()
    try:
        with redirect_stdout(told):
            yield
    finally:
        _on_share = before
        print(told.getvalue(), end="", flush=True)


def progress_view(name: str, max_steps: int, metric: str) -> ProgressView:
    """What suits standard output."""
    if _on_share is not None:
        return ToldProgress(_on_share, max_steps)
    console = Console()
    view = LiveProgress if console.is_terminal else PlainProgress
    return view(console, name, max_steps, f"validation {metric}" if metric == LOSS else metric)


class ToldProgress:
    """Shows nothing, but tells how much is done."""

    def __init__(self, on_share: Callable[[float], None], max_steps: int) -> None:
        self._on_share, self._max_steps = on_share, max_steps
        self._told_s = -math.inf

    def show(self, row: MetricsRow) -> None:
        """Tell the share of the row's step, unless another was told just now."""
        now_s = time.monotonic()
        if now_s - self._told_s >= TOLD_EVERY_S:
            self._told_s = now_s
            self._on_share(row.step / self._max_steps)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


class LiveProgress:
    """A bar with step, loss, score, MB sent and the time that is left."""

    def __init__(self, console: Console, name: str, max_steps: int, metric: str) -> None:
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("loss {task.fields[loss]}"),
            TextColumn(metric + " {task.fields[score]}"),
            TextColumn("{task.fields[megabytes]} MB sent"),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress.add_task(
            name, total=max_steps, loss=UNKNOWN, score=UNKNOWN, megabytes=_megabytes(None)
        )

    def show(self, row: MetricsRow) -> None:
        """Move the bar to the row's step and update the numbers that the row has."""
        fields: dict[str, Any] = {"megabytes": _megabytes(row.bytes_sent)}
        fields |= {} if row.loss is None else {"loss": _loss(row.loss)}
        fields |= {} if row.value is None else {"score": f"{row.value:.3f}"}
        self._progress.update(self._task, completed=row.step, **fields)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()


class PlainProgress:
    """A line for every evaluation."""

    def __init__(self, console: Console, name: str, max_steps: int, metric: str) -> None:
        self._name = name
        self._metric = metric
        self._max_steps = max_steps
        self._loss: float | None = None
        self._first: tuple[int, float] | None = None

    def show(self, row: MetricsRow) -> None:
        """Print a line if the row is an evaluation; remember the row's loss."""
        self._loss = self._loss if row.loss is None else row.loss
        left = self._left(row.step)
        if row.is_evaluation:
            print(
                f"{self._name}: step {row.step}/{self._max_steps}  loss {_loss(self._loss)}  "
                f"{self._metric} {row.value:.3f}  {_megabytes(row.bytes_sent)} MB sent  "
                f"ETA {left}",
                flush=True,
            )

    def _left(self, step: int) -> str:
        """How long it will take from `step` on, by the steps since the first row: a run that goes
        on begins behind others.
        """
        now_s = time.monotonic()
        first, first_s = self._first = self._first or (step, now_s)
        if step == first:
            return UNKNOWN
        return f"{(now_s - first_s) / (step - first) * (self._max_steps - step):.0f} s"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass


def _loss(loss: float | None) -> str:
    """Of a run that goes on none is known before its first logged step."""
    return UNKNOWN if loss is None else f"{loss:.4f}"


def _megabytes(bytes_sent: float | None) -> str:
    """None: nothing counts the bytes."""
    return UNKNOWN if bytes_sent is None else f"{bytes_sent / 1e6:.1f}"
