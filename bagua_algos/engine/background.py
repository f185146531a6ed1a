"""Work of an algorithm beside training; training never waits for it."""

from collections.abc import Callable

import torch
from torch import Tensor

from bagua_algos.communication.at_exit import Departures
from bagua_algos.communication.communicator import Communicator
from bagua_algos.engine.lane import CommunicationLane
from bagua_algos.engine.step_observer import Clocks


class Background:
    """A lane that no step waits for, with connections of its own.

    Args:
        lane: runs the jobs, in order.
        clocks: of simulated workers; without them, simulated jobs take no time.
    """

    def __init__(self, lane: CommunicationLane, clocks: Clocks | None = None) -> None:
        self._lane = lane
        self._clocks = clocks
        self.begun_w = torch.zeros(len(lane.communicator.ranks), dtype=torch.bool)
        """The workers held here that have begun the next job; it runs when all have."""
        self.num_steps = 0
        """That training has taken, for whoever is to know when it ends."""
        self.is_given_up = False
        """Whether its failure is known, and has been told."""
        self._stood_still_s = 0.0
        self._stopped_s: float | None = None

    @property
    def communicator(self) -> Communicator:
        """For use within jobs only: the other workers, over connections that no step uses."""
        return self._lane.communicator

    @property
    def failure(self) -> BaseException | None:
        """What ended the lane: later jobs are not tried."""
        return self._lane.failure

    @property
    def departures(self) -> Departures | None:
        """Which other workers have ended; None where all are held here."""
        return self._lane.communicator.departures

    def at_end(self, before: Callable[[], None], after: Callable[[float], None]) -> None:
        """When the process ends in the middle of training, call `before`, and `after` the job under
        way, with the `time.monotonic()` until which the end may wait.
        """
        self._lane.at_end(before, after)

    def begin(self, workers: Tensor, label: str, job: Callable[[], None]) -> None:
        """Some workers held here (bool `[w]`) begin `job`; it runs once all have."""
        self.begun_w |= workers
        if not self.begun_w.all():
            return
        self.begun_w = torch.zeros_like(self.begun_w)
        if self._clocks is None:
            self._lane.submit(label, job)
            return
        with self._clocks.background():
            self._lane.submit(label, job)
            self._lane.wait()

    def now_w(self) -> Tensor:
        """Each worker's clock, seconds, float64 `[w]`. It stands still while training does."""
        if self._clocks is not None:
            return self._clocks.now_w()
        clock_s = self.communicator.clock() if self._stopped_s is None else self._stopped_s
        own_s = clock_s - self._stood_still_s
        return torch.full((len(self.communicator.ranks),), own_s, dtype=torch.float64)

    def stop_clock(self) -> None:
        """Training pauses: what follows, such as an evaluation, brings no job nearer."""
        if self._stopped_s is None:
            self._stopped_s = self.communicator.clock()

    def start_clock(self) -> None:
        """Training goes on."""
        if self._stopped_s is not None:
            self._stood_still_s += self.communicator.clock() - self._stopped_s
            self._stopped_s = None

    def done_w(self) -> Tensor:
        """Whether the last job that it has begun is done at each worker's own time, bool `[w]`.

        Where all workers are held here and no clocks are kept, whatever runs is done by the next
        time that anybody asks.
        """
        if self._clocks is not None:
            return self._clocks.background_done_w() & ~self.begun_w
        if len(self.communicator.ranks) == self.communicator.world_size:
            self._lane.wait()
        return torch.full_like(self.begun_w, self._lane.is_idle) & ~self.begun_w

    def wait(self) -> None:
        """Wait until all jobs are done; raises what the first failed one raised."""
        self._lane.wait()
        if self._clocks is not None:
            self._clocks.background_wait()
