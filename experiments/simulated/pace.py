"""Simulated workers, each at its own pace.

Where no worker waits for another, a fast one has done more steps than a slow one by the time that
they average. A simulation that lets them step together would give each of them what it could not
have known yet, or too late; so it lets no worker go beyond the earliest moment at which it might
hear of another.

An optimizer of stacked workers keeps some numbers once for all of them, such as Adam's count of
steps and the learning rate. So those who take a step at once have done equally many; who has done
the fewest goes first, and the numbers are put back to what they were after as many steps.

Shapes: w workers held by this process.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from bagua_algos.engine.engine import Engine
from bagua_algos.worker_axis.standing_rows import StandingRows
from experiments.plan.plan import Plan
from experiments.simulated.clocks import SimulatedClocks
from experiments.simulated.shared_numbers import SharedNumbers
from experiments.tasks.batches import Batches
from experiments.training.pace import Pace, together
from experiments.training.step import Step


def make_pace(
    plan: Plan, clocks: SimulatedClocks, model: nn.Module, optimizer: torch.optim.Optimizer
) -> Pace:
    """How simulated workers go on; to be called before the model is distributed."""
    if plan.algorithm.depends_on_timing:
        return OwnPace(clocks, StandingRows(model, optimizer))
    return together


class OwnPace:
    """Simulated workers that do not wait for each other before `end`; there they do.

    Args:
        clocks: theirs.
        rows: of their model.
    """

    def __init__(self, clocks: SimulatedClocks, rows: StandingRows) -> None:
        self._clocks = clocks
        self._rows = rows

    def __call__(self, batches: Batches, take_step: Step, start: int, end: int) -> Iterator[Tensor]:
        """Take steps `start` to `end`, each worker at its own pace; yields the losses `[w]`."""
        assert isinstance(take_step.distributed, Engine)
        background = take_step.distributed.context.background
        assert background is not None, "who depends on timing averages in the background"
        numbers = SharedNumbers(take_step.optimizer, take_step.schedule, start)
        steps_w = np.full(len(batches.ranks), start)
        while (steps_w < end).any():
            factors_w, moves_w = self._next(steps_w, end, background.begun_w.numpy())
            fewest = int(steps_w[moves_w].min())
            moves_w &= steps_w == fewest
            numbers.recall(fewest)
            self._rows.keep(torch.from_numpy(~moves_w))
            self._clocks.pace_w = np.where(moves_w, factors_w, 0.0)
            losses_w = take_step(batches.indices_at(np.minimum(steps_w, end - 1)))
            steps_w += moves_w
            numbers.remember(fewest + 1, oldest=int(steps_w.min()))
            if moves_w[0]:
                yield losses_w

    def _next(
        self, steps_w: np.ndarray, end: int, begun_w: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """How slow each worker's next step is, and which workers take it now.

        The round that is not under way yet begins no earlier than the last of those who have not
        begun it ends a step.
        """
        is_left_w = steps_w < end
        factors_w, ends_s = self._clocks.next_step(steps_w)
        late_w = is_left_w & ~begun_w
        horizon_s = ends_s[late_w].max() if late_w.any() else np.inf
        first_s = ends_s[is_left_w].min()
        return factors_w, is_left_w & (ends_s <= max(horizon_s, first_s))
