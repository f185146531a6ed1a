"""Simulated workers, each at its own pace.

Where no worker waits for another, a fast one has done more steps than a slow one by the time that
they average. A simulation that lets them step together would give each of them what it could not
have known yet, or too late; so it lets no worker go beyond the earliest moment at which it might
hear of another.

An evaluation finds them as they are at the moment when the last of them has done so many steps: who
is in the middle of a step has the weights from before it. No clock and no weight depends on it.

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
from bagua_algos.worker_axis.standing_rows import LateStateError, StandingRows
from experiments.plan.plan import Plan
from experiments.simulated.clocks import SimulatedClocks
from experiments.simulated.shared_numbers import SharedNumbers
from experiments.tasks.batches import Batches
from experiments.training.pace import Pace, Together
from experiments.training.step import Step
from host.errors import UserError


def make_pace(
    plan: Plan, clocks: SimulatedClocks, model: nn.Module, optimizer: torch.optim.Optimizer
) -> Pace:
    """How simulated workers go on; to be called before the model is distributed.

    Raises `UserError` for an optimizer whose workers cannot stand still.
    """
    if not plan.algorithm.depends_on_timing:
        return Together()
    try:
        return OwnPace(clocks, StandingRows(model, optimizer))
    except ValueError as error:
        raise UserError(str(error)) from error


class OwnPace:
    """Simulated workers that do not wait for each other.

    Args:
        clocks: theirs.
        rows: of their model.
    """

    def __init__(self, clocks: SimulatedClocks, rows: StandingRows) -> None:
        self._clocks = clocks
        self._rows = rows
        self._numbers: SharedNumbers | None = None
        self._steps_w = np.zeros(0, dtype=int)

    def __call__(
        self, batches: Batches, take_step: Step, start: int, due: int, limit: int
    ) -> Iterator[Tensor]:
        """Take steps until the moment at which the last worker has done `due`; a worker that has
        done `limit` stands. Yields the losses `[w]` after each step of the first worker.

        Raises `UserError` for an optimizer whose workers cannot stand still.
        """
        assert isinstance(take_step.distributed, Engine)
        background = take_step.distributed.context.background
        assert background is not None, "who depends on timing averages in the background"
        if self._numbers is None:
            self._numbers = SharedNumbers(take_step.optimizer, take_step.schedule, start)
            self._steps_w = np.full(len(batches.ranks), start)
        numbers, steps_w, until_s = self._numbers, self._steps_w, -np.inf
        while True:
            factors_w, ends_s = self._clocks.next_step(np.minimum(steps_w, limit - 1))
            moves_w = self._movers(ends_s, limit, background.begun_w.numpy())
            if (steps_w >= due).all():
                moves_w &= ends_s <= until_s
            if not moves_w.any():
                return
            fewest = int(steps_w[moves_w].min())
            moves_w &= steps_w == fewest
            numbers.recall(fewest)
            self._rows.keep(torch.from_numpy(~moves_w))
            self._clocks.pace_w = np.where(moves_w, factors_w, 0.0)
            try:
                losses_w = take_step(batches.indices_at(np.minimum(steps_w, limit - 1)))
            except LateStateError as error:
                raise UserError(str(error)) from error
            steps_w += moves_w
            if fewest + 1 == due:
                until_s = max(until_s, self._clocks.timeline.time_s[moves_w].max())
            numbers.remember(fewest + 1, oldest=int(steps_w.min()))
            if moves_w[0]:
                yield losses_w

    def wait(self, due: int) -> None:
        """Do nothing: all have done `due` steps."""

    def steps_w(self) -> Tensor:
        """Each worker's steps that had ended when the last one had done as many as were due."""
        return torch.from_numpy(self._steps_w).double()

    def _movers(self, ends_s: np.ndarray, limit: int, begun_w: np.ndarray) -> np.ndarray:
        """Which workers may take their next step now, which ends at `ends_s`.

        The round that is not under way yet begins no earlier than the last of those who have not
        begun it ends a step.
        """
        is_left_w = self._steps_w < limit
        late_w = is_left_w & ~begun_w
        horizon_s = ends_s[late_w].max() if late_w.any() else np.inf
        first_s = ends_s[is_left_w].min(initial=np.inf)
        return is_left_w & (ends_s <= max(horizon_s, first_s))
