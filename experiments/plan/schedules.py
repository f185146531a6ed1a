"""Learning rates: all of them scaled, or rising first and then falling, as transformers are
trained: a choice of `conf/schedule/`.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from host.errors import UserError, first_line

SHAPES = ("linear", "cosine")


@dataclass(frozen=True, kw_only=True)
class Factor:
    """Of the optimizer's learning rate, at a step that is counted from 0: from nearly 0 to 1 in
    `warmup` steps, then to `least` at step `steps`, and so on.
    """

    warmup: int
    steps: int
    shape: str
    least: float

    def __call__(self, step: int) -> float:
        """From 0 to 1."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        done = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        left = 1 - done if self.shape == "linear" else (1 + math.cos(math.pi * done)) / 2
        return self.least + (1 - self.least) * left


def scale_rates_(optimizer: Optimizer, scale: float) -> None:
    """Multiply the learning rates of all groups."""
    for group in optimizer.param_groups:
        group["lr"] *= scale


def check_length(make: Callable[[], LRScheduler], num_steps: int) -> None:
    """Raise `UserError` where a schedule that `make` makes has no rate after as many steps, as
    `OneCycleLR` has none after its total_steps. The last step is tried at once; where it fails, all
    are, since some schedules only know it after the others. One that hides its end from the last
    step, as `SequentialLR` does, is told of in training.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no optimizer takes a step here
        last = make()
        last.last_epoch = num_steps - 1
        try:
            last.step()
        except Exception:  # whatever a user's own schedule raises
            schedule = make()
            for _ in range(num_steps):
                step(schedule)


def step(schedule: LRScheduler) -> None:
    """Set the next learning rate. Raises `UserError` where the schedule has none."""
    try:
        schedule.step()
    except Exception as error:  # whatever a user's own schedule raises
        raise UserError(
            f"schedule: it ends before max_steps ({first_line(error).rstrip('.')}): give it as "
            "many steps"
        ) from error


def rise_and_fall(
    optimizer: Optimizer, *, warmup: int, steps: int, shape: str, least: float = 0.0
) -> LambdaLR:
    """The schedule by a `Factor`. Raises ValueError for numbers that no schedule can have."""
    if shape not in SHAPES or warmup < 0 or steps < 1 or not 0 <= least <= 1:
        raise ValueError(
            f"schedule.shape is one of {', '.join(SHAPES)}, warmup at least 0 and least from 0 to "
            f"1, got {shape}, {warmup} and {least}"
        )
    return LambdaLR(optimizer, Factor(warmup=warmup, steps=steps, shape=shape, least=least))
