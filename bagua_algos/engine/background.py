"""Work of an algorithm beside training; training never waits for it."""

import math
import time
from collections.abc import Callable

import torch
from torch import Tensor

from bagua_algos.communication.communicator import Communicator
from bagua_algos.communication.threads.at_exit import Departures
from bagua_algos.engine.lane import CommunicationLane
from bagua_algos.engine.step_observer import Clocks

_LOOKS_EVERY_S = 1e-3


class Background:
    """A lane that no step waits for, with connections of its own.

    Args:
        lane: runs the jobs, in order.
        clocks: of simulated workers; without them, simulated jobs take no time.
    """

    def __init__(self, lane: CommunicationLane, clocks: Clocks | None = None) -> None:
        self._lane = lane
        self._clocks = clocks
        self.begun_w = torch.zeros(len(lane.communicator.ranks), dtype=torch.bool, device="cpu")
        """The workers held here that have begun the next job; it runs when all have."""
        self.num_steps = 0
        """That training has taken, for code that has to know when it ends."""
        self.is_given_up = False
        """Whether its failure is known, and has been told."""
        self._num_begun = 0
        self._stood_still_s = 0.0
        self._stopped_s: float | None = None
        self._ended_s = -math.inf
        """When the last job ended, by this clock, if it was waited for while the clock stood."""

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
        self._num_begun += 1
        self._ended_s = -math.inf
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
        num_held = len(self.communicator.ranks)
        return torch.full((num_held,), self._now_s(), dtype=torch.float64, device="cpu")

    def stop_clock(self) -> None:
        """Training pauses: what follows, such as an evaluation, brings no job nearer."""
        if self._stopped_s is None:
            self._stopped_s = self.communicator.clock()

    def stand_still(self, others: Communicator, device: torch.device) -> None:
        """Training pauses, and what goes on here is not ended: it is done when the clock comes to
        the time at which it would have been without the pause.

        A collective call by the connections of `others`, which take tensors from `device`. A job
        that all workers have begun is waited for, so that what follows does not share the network
        with it; one that some have not begun has nothing to do before training goes on. Raises
        what ended the lane.
        """
        is_under_way = not self._lane.is_idle
        self.stop_clock()
        if self._clocks is None and len(others.ranks) < others.world_size:
            own = torch.tensor([[self._num_begun]], device=device)
            if (others.all_gather(own) == self._num_begun).all() and is_under_way:
                while not self._lane.is_idle:
                    time.sleep(_LOOKS_EVERY_S)
                self._ended_s = self.communicator.clock() - self._stood_still_s
        if self.failure is not None:
            raise self.failure

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
        is_done = self._lane.is_idle and self._now_s() >= self._ended_s
        return torch.full_like(self.begun_w, is_done) & ~self.begun_w

    def wait(self) -> None:
        """Wait until all jobs are done; raises what the first failed one raised."""
        self._lane.wait()
        if self._clocks is not None:
            self._clocks.background_wait()
        elif self._stopped_s is None:
            time.sleep(max(0.0, self._ended_s - self._now_s()))

    def _now_s(self) -> float:
        clock_s = self.communicator.clock() if self._stopped_s is None else self._stopped_s
        return clock_s - self._stood_still_s
