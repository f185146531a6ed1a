"""What an algorithm does beside training, without training ever waiting for it."""

from collections.abc import Callable

import torch
from torch import Tensor

from bagua_algos.communicator import Communicator
from bagua_algos.lane import CommunicationLane


class Background:
    """A lane that no step waits for, with connections of its own.

    Args:
        lane: runs the jobs, in order.
    """

    def __init__(self, lane: CommunicationLane) -> None:
        self._lane = lane

    @property
    def communicator(self) -> Communicator:
        """For use within jobs only: the other workers, over connections that no step uses."""
        return self._lane.communicator

    @property
    def failure(self) -> BaseException | None:
        """What ended the lane: later jobs are not tried."""
        return self._lane.failure

    def submit(self, label: str, job: Callable[[], None]) -> None:
        """Run `job` after all earlier ones."""
        self._lane.submit(label, job)

    def now_w(self) -> Tensor:
        """Each worker's clock, seconds, float64 `[w]`."""
        clock_s = self.communicator.clock()
        return torch.full((len(self.communicator.ranks),), clock_s, dtype=torch.float64)

    def done_w(self) -> Tensor:
        """Whether all that was submitted is done at each worker's own time, bool `[w]`.

        Where all workers are held here no time passes, so whatever was submitted is done by the
        next time that anybody asks.
        """
        if len(self.communicator.ranks) == self.communicator.world_size:
            self._lane.wait()
        return torch.full((len(self.communicator.ranks),), self._lane.is_idle)

    def wait(self) -> None:
        """Wait until all jobs are done; raises what the first failed one raised."""
        self._lane.wait()
