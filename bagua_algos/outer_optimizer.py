"""Outer optimizers: one step from the mean of workers that have trained apart for a while.

x0 are the weights at which all workers started, x_i the weights that worker i has reached, d = x0 -
mean_i x_i the outer gradient, u the outer momentum (zero at first), lr the inner optimizer's
learning rate.

    SlowMo      u <- b u + d / lr       x <- x0 - a lr u            arXiv 1910.00643, algorithm 1
    Nesterov    u <- b u + d            x <- x0 - a (d + b u)       arXiv 2311.08105, algorithm 1

The plain mean is `Nesterov(lr=1, momentum=0)`.
"""

import math
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class OuterOptimizer(Protocol):
    """One step for all workers, equal on each. Anchor and momentum are the caller's state.

    It may have a `check(inner_lr)`, which raises `ValueError` where it cannot step by this inner
    learning rate: called for all parts of the model before any of it changes.
    """

    def step_(
        self, anchor: Tensor, outer_gradient: Tensor, momentum: Tensor, inner_lr: float
    ) -> None:
        """Move `anchor`, which is x0, to x and update `momentum` in place; all of equal shape."""
        ...


@dataclass(frozen=True, kw_only=True)
class SlowMo:
    """Slow momentum in units of gradients, so that it survives a change of the inner learning rate.

    `lr` is the paper's alpha and `momentum` its beta; `SlowMo(momentum=0)` is the plain mean.
    """

    lr: float = 1.0
    momentum: float = 0.7

    def __post_init__(self) -> None:
        _check(self.lr, self.momentum)

    def check(self, inner_lr: float) -> None:
        """Raise `ValueError` for an inner learning rate of 0."""
        if inner_lr == 0:
            raise ValueError(
                "SlowMo divides by the optimizer's learning rate, which is 0 at this averaging: "
                "let the schedule end above 0 or choose the Nesterov outer optimizer"
            )

    def step_(
        self, anchor: Tensor, outer_gradient: Tensor, momentum: Tensor, inner_lr: float
    ) -> None:
        """Take SlowMo's step, in place."""
        momentum.mul_(self.momentum).add_(outer_gradient, alpha=1 / inner_lr)
        anchor.sub_(momentum, alpha=self.lr * inner_lr)


@dataclass(frozen=True, kw_only=True)
class Nesterov:
    """DiLoCo's outer optimizer: `torch.optim.SGD(nesterov=True)` on the outer gradient; the inner
    learning rate plays no part. `lr` and `momentum` are those of that optimizer.
    """

    lr: float = 0.7
    momentum: float = 0.9

    def __post_init__(self) -> None:
        _check(self.lr, self.momentum)

    def step_(
        self, anchor: Tensor, outer_gradient: Tensor, momentum: Tensor, inner_lr: float
    ) -> None:
        """Take the Nesterov step, in place; `inner_lr` is not used."""
        momentum.mul_(self.momentum).add_(outer_gradient)
        anchor.sub_(outer_gradient, alpha=self.lr).sub_(momentum, alpha=self.lr * self.momentum)


def _check(lr: float, momentum: float) -> None:
    if not 0 < lr < math.inf:
        raise ValueError(f"the outer lr must be more than 0 and finite, got {lr}")
    if not 0 <= momentum < 1:
        raise ValueError(f"the outer momentum must be in [0, 1), got {momentum}")
