"""Learning rates: all of them scaled, or rising first and then falling, as transformers are
trained: a choice of `conf/schedule/`.
"""

import math
from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

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
