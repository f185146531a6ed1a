"""Real workers that take their steps without waiting for each other, and stop for an evaluation as
soon as the last of them has done so many.
"""

import time
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from bagua_algos.communication.communicator import CommunicationError
from bagua_algos.communication.rendezvous import Store
from bagua_algos.engine.engine import Engine
from experiments.plan.plan import Plan
from experiments.tasks.batches import Batches
from experiments.training.pace import Pace, Together
from experiments.training.step import Step

_LOOKS_EVERY_S = 1e-3


class Meeting(Protocol):
    """Where workers see who has come to an evaluation."""

    def come(self, step: int) -> None:
        """This worker has done `step` steps."""
        ...

    def is_complete(self, step: int) -> bool:
        """Whether every worker has done `step` steps, and has said so by `come`; no wait."""
        ...


class StoreMeeting:
    """A `Meeting` in the store of processes that torchrun or srun has started.

    Args:
        store: theirs.
        world_size: how many they are.
    """

    def __init__(self, store: Store, world_size: int) -> None:
        self._store = store
        self._world_size = world_size

    def come(self, step: int) -> None:
        """Count this worker in, once for each `step`."""
        if self._store.add(f"come to {step}", 1) == self._world_size:
            self._store.set(_complete(step), "")

    def is_complete(self, step: int) -> bool:
        """Whether all have been counted in."""
        return self._store.check([_complete(step)])


def _complete(step: int) -> str:
    return f"all have come to {step}"


class OwnSteps:
    """The pace of a worker that waits for nobody.

    Args:
        meeting: of all workers.
        limit_s: how long one that has no more steps to take waits for the others.
    """

    def __init__(self, meeting: Meeting, limit_s: float) -> None:
        self._meeting = meeting
        self._limit_s = limit_s
        self._num_steps = 0

    def __call__(
        self, batches: Batches, take_step: Step, start: int, due: int, limit: int
    ) -> Iterator[Tensor]:
        """Take steps until all workers have done `due`; the one under way is ended then."""
        take_step.read_ahead(batches, start)
        self._num_steps = start
        if start >= due:
            self._meeting.come(due)
        while self._num_steps < limit and not self._is_over(due):
            losses_w = take_step(batches.indices(self._num_steps))
            self._num_steps += 1
            yield losses_w
            if self._num_steps == due:
                self._meeting.come(due)
            _check_background(take_step)

    def _is_over(self, due: int) -> bool:
        return self._num_steps >= due and self._meeting.is_complete(due)

    def wait(self, due: int) -> None:
        """Wait for those who have not done `due` steps. `CommunicationError`: they do not come."""
        deadline_s = time.monotonic() + self._limit_s
        while not self._meeting.is_complete(due):
            if time.monotonic() > deadline_s:
                raise CommunicationError(
                    f"not all workers have done {due} steps {self._limit_s:g} s after this one"
                )
            time.sleep(_LOOKS_EVERY_S)

    def steps_w(self) -> Tensor:
        """This worker's."""
        return torch.tensor([self._num_steps], dtype=torch.float64)


def make_pace(plan: Plan, meeting: Meeting) -> Pace:
    """How this worker goes on from one evaluation to the next."""
    if plan.algorithm.depends_on_timing:
        return OwnSteps(meeting, plan.cluster.timeout_s)
    return Together()


def _check_background(take_step: Step) -> None:
    """Raise where rounds have ended: each worker would train on alone."""
    assert isinstance(take_step.distributed, Engine)
    background = take_step.distributed.context.background
    if background is not None and background.is_given_up:
        take_step.distributed.pause()  # raises what has become of whom
