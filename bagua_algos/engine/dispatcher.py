"""Lets an algorithm act at the moments of a step, on the communication lanes of one worker."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from bagua_algos.communication.communicator import Communicator
from bagua_algos.engine.algorithm import Algorithm, Context, acts_at
from bagua_algos.engine.background import Background
from bagua_algos.engine.bucket import Bucket
from bagua_algos.engine.consensus import Run
from bagua_algos.engine.lane import CommunicationLane
from bagua_algos.engine.step_observer import Clocks, StepObserver
from bagua_algos.engine.stopwatch import make_stopwatch, running


class Dispatcher:
    """One or two lanes, and one for the background where the algorithm uses it.

    Every lane has connections of its own. So neither a script's collectives nor those of another
    distributed model, which other threads begin in any order, are ever taken for the algorithm's.
    Making one is a collective call.

    Args:
        algorithm: what acts.
        communicator: the workers; none of its own connections is used.
        device: where the tensors live.
        num_buckets: lanes that no bucket would use are not made.
        timeout_s: the longest wait for one job.
        observer: hears of every moment; one that keeps simulated clocks also keeps the time.
        check: raises where the workers cannot begin, on all of them; it may communicate, in jobs of
            the `Run` that it is given. Its turn is before there is a second lane: how many there
            are depends on the model, and workers may have built others.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        communicator: Communicator,
        device: torch.device,
        *,
        num_buckets: int,
        timeout_s: float,
        observer: StepObserver | None = None,
        check: Callable[[Communicator, Run], None] = lambda *_: None,
    ) -> None:
        self._algorithm = algorithm
        self._observer = observer
        self._clocks = observer if isinstance(observer, Clocks) else None
        self._earlier_exposed_s = 0.0
        self._exposed = make_stopwatch(device)

        def lane() -> CommunicationLane:
            duplicate = communicator.duplicate()
            duplicate.limit_waits(timeout_s)
            return CommunicationLane(duplicate, device, timeout_s)

        self._lanes = [lane()]
        self._background_lane = None
        with self.closed_on_error():
            check(self.communicator, self.run)
        num_lanes = min(self._max_lanes(communicator, device), num_buckets)
        self._lanes += [lane() for _ in range(1, num_lanes)]
        self._num_used = len(self._lanes)
        self._background_lane = lane() if algorithm.uses_background else None
        self.background = self._background_lane and Background(self._background_lane, self._clocks)
        """For a context; None where the algorithm does nothing in the background."""

    @property
    def communicator(self) -> Communicator:
        """The workers over the first lane's connections, for use in its jobs only."""
        return self._lanes[0].communicator

    @property
    def num_lanes(self) -> int:
        """How many there are for buckets."""
        return len(self._lanes)

    @property
    def num_used(self) -> int:
        """How many of them buckets are on."""
        return self._num_used

    def use(
        self,
        num_lanes: int,
        *,
        streams: int,
        halving_doubling_bytes: int,
        fixed_order: bool,
        pieces: bool,
    ) -> None:
        """Let buckets be on so many of the lanes, and each of these have so many streams, in pieces
        or equal parts, and that pattern of all-reduces. Between two steps of gloo's workers; a
        collective call where there are more streams than ever before.
        """
        self._num_used = num_lanes
        for lane in self._lanes:
            lane.communicator.use_transport(
                streams=streams,
                halving_doubling_bytes=halving_doubling_bytes,
                fixed_order=fixed_order,
                pieces=pieces,
            )

    @property
    def exposed_communication_s(self) -> float:
        """Seconds that training has waited for the lanes, on simulated clocks if there are any."""
        simulated_s = 0.0 if self._clocks is None else self._clocks.exposed_communication_s
        return self._earlier_exposed_s + self._exposed.seconds + simulated_s

    @exposed_communication_s.setter
    def exposed_communication_s(self, seconds: float) -> None:
        self._earlier_exposed_s += seconds - self.exposed_communication_s

    def acts_at(self, moment: str) -> bool:
        """Whether the algorithm does anything at `moment`, the name of a method of `Algorithm`."""
        return acts_at(self._algorithm, moment)

    @property
    def acts_on_gradients(self) -> bool:
        """Whether the algorithm needs every step's gradients in backward."""
        return any(map(self.acts_at, ("on_bucket_ready", "on_backward_end")))

    @property
    def may_take_gradients(self) -> bool:
        """Whether it acts on gradients in backward, or may do so where a step begins."""
        return self.acts_on_gradients or self.acts_at("on_step_begin")

    @property
    def acts_on_weights(self) -> bool:
        """Whether the algorithm has to know all that changes the weights."""
        return any(map(self.acts_at, ("on_forward", "on_step_begin", "on_step_end")))

    def submit_moment(
        self,
        moment: str,
        context: Context,
        bucket: Bucket | None = None,
        *,
        may_wait: bool = True,
    ) -> None:
        """Let the algorithm act at a moment, if it does, on the lane of the bucket. Unless it
        `may_wait`, that is begun though the caller may not `wait` next.
        """
        if not self.acts_at(moment):
            return
        index = None if bucket is None else bucket.index
        lane = (index or 0) % self._num_used
        context = replace(context, communicator=self._lanes[lane].communicator)
        arguments = (context,) if bucket is None else (context, bucket)
        observer, act = self._observer, getattr(self._algorithm, moment)

        def job() -> None:
            if observer is not None:
                observer.on_job(moment, index)
            act(*arguments)
            for used in context.buckets if bucket is None else (bucket,):
                used.end_moment(moment)
            if observer is not None:
                observer.on_job_end(moment, index)

        if observer is not None:
            observer.on_submit(moment, index)
        what = moment if bucket is None else f"bucket {index}"
        # Backward is over with the last bucket: nothing is left to do beside it.
        is_last = index is not None and index + 1 == len(context.buckets)
        self._lanes[lane].submit(
            f"{what} of {type(self._algorithm).__name__}",
            job,
            by_caller=is_last
            and may_wait
            and self._algorithm.only_averages
            and context.communicator.shares_memory,
        )

    def run(self, label: str, job: Callable[[], None]) -> None:
        """Run `job` on the first lane, and wait for all lanes."""
        self._lanes[0].submit(label, job)
        self._wait()

    def run_buckets(
        self, label: str, act: Callable[[Communicator, Bucket], None], buckets: Sequence[Bucket]
    ) -> None:
        """Run `act` for each bucket, on its lane, and wait for all."""
        for bucket in buckets:
            lane = self._lanes[bucket.index % self._num_used]
            lane.submit(label, partial(act, lane.communicator, bucket))
        self._wait()

    def run_exposed(self, label: str, job: Callable[[], None]) -> None:
        """As `run`, and count the time as exposed communication."""
        self._lanes[0].submit(label, job)
        self.wait_exposed()

    def wait_exposed(self) -> None:
        """Wait for all lanes, and count the time as exposed communication."""
        if self._clocks is not None:
            self._wait()
            return
        with running(self._exposed):
            self._wait()

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Within, an error ends all lanes."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all lanes; what still goes on in the background is left to its end."""
        for lane in self._lanes:
            lane.close()
        if self._background_lane is not None:
            self._background_lane.close()

    def _wait(self) -> None:
        try:
            for lane in self._lanes:
                lane.run_held()  # while the other lanes are at work
            for lane in self._lanes:
                lane.wait()
        except BaseException:
            failures = [lane.failure for lane in self._lanes if lane.failure is not None]
            for lane in self._lanes:  # others may wait for what no longer comes
                lane.failure = lane.failure or next(iter(failures), None)
            raise

    def _max_lanes(self, communicator: Communicator, device: torch.device) -> int:
        """Two lanes hide latency between processes on CPUs; NCCL wants one order for all."""
        between_processes = len(communicator.ranks) < communicator.world_size
        is_ordered = self.acts_at("on_forward")
        return 2 if between_processes and device.type == "cpu" and not is_ordered else 1
