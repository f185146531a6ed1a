"""Autotuning while training: window after window of steps, each by other settings.

At the end of a window the workers tell each other what a step took and take the slowest worker's
time. So all propose the same settings next, and change to them between the same two steps.
"""

import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from bagua_algos.autotune.order import Order, OrderTrial, at_most_all, slowest, sum_in
from bagua_algos.autotune.scope import MOST_STEPS, NUM_MEASURED, NUM_SETTLING, Scope, is_gloos
from bagua_algos.autotune.search import Proposals, Settings, Space, search
from bagua_algos.communication.patterns import EVERY_SIZE
from bagua_algos.communication.streams import connected_when_used
from bagua_algos.engine.bucket import Groups, grouped
from bagua_algos.engine.engine import Engine

NUM_BEFORE = 3
"""Steps before the first window, in which kernels are loaded and memory is found."""
STREAMS = (4, 8, 16)


@dataclass(frozen=True, kw_only=True)
class Window:
    """A row of the trace: by these settings a step took `step_s` seconds, on the slowest worker,
    until `step`.
    """

    step: int
    settings: Settings
    num_buckets: int
    step_s: float


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """What autotuning has come to: the settings now, and all windows so far. `left_out` says in
    sentences what is not tuned, and why. `order` tells whether sums have a fixed order: if so, a
    run that is never tuned has the same bits by `pattern="direct"`, else by the pattern given.
    """

    settings: Settings
    is_done: bool
    left_out: tuple[str, ...]
    order: Order
    windows: tuple[Window, ...]

    def table(self) -> dict[str, Any]:
        """The same in plain values, for a record: the windows are rows of one table."""
        rows = [
            {"step": w.step, **asdict(w.settings), "num_buckets": w.num_buckets, "step_s": w.step_s}
            for w in self.windows
        ]
        return asdict(self) | {"windows": rows}


class Tuner:
    """Tunes one engine, as its listener.

    Args:
        engine: of a real worker.
        own: what may be tuned where sums have a fixed order.
        order: of the engine's sums.
        bucket_bytes: what its buckets were made by.
        clock: seconds, monotonic.
        num_measured: steps of a window; a multiple of the algorithm's round is taken.
        num_settling: steps of a window before them.
    """

    def __init__(
        self,
        engine: Engine,
        own: Scope,
        order: Order,
        bucket_bytes: int,
        *,
        clock: Callable[[], float] = time.perf_counter,
        num_measured: int = NUM_MEASURED,
        num_settling: int = NUM_SETTLING,
    ) -> None:
        self._engine, self._clock = engine, clock
        workers, buckets = engine.context.communicator, engine.context.buckets
        self._device = buckets[0].weights.device
        self._own, self.order = own, order
        self.streams: tuple[int, ...] = STREAMS
        self._settings = Settings(
            bucket_bytes=at_most_all(buckets, bucket_bytes),
            lanes=engine.dispatcher.num_lanes,
            streams=workers.streams,
            halving_doubling_bytes=workers.halving_doubling_bytes,
            pieces=workers.pieces,
        )
        self.round = engine.algorithm.steps_per_round
        self._num_settling = num_settling
        self._num_rounds = max(1, num_measured // self.round)
        self.first = max(engine.algorithm.num_early_steps, NUM_BEFORE)
        self._proposals: Proposals | None = None
        self._orders = {False: [p for b in buckets for p in b.parameters]}
        self._windows: list[Window] = []
        self._is_done = not own.tunes_lanes
        self._restored: Settings | None = None
        self._window = _Times()
        self._kept: tuple[str, ...] = ()

    @property
    def scope(self) -> Scope:
        """What is tuned."""
        return self._own.by(self.order)

    @property
    def tuning(self) -> Tuning:
        """What it has come to."""
        return Tuning(
            settings=self._found,
            is_done=self._is_done,
            left_out=self.scope.left_out + self._kept,
            order=self.order,
            windows=tuple(self._windows),
        )

    @property
    def _found(self) -> Settings:
        """Those now, or the loaded ones that the next step will end with."""
        return self._restored or self._settings

    def forward_begins(self) -> None:
        """A step begins, after something else."""
        if not self._is_done and self._window.since_s is None:
            self._window.since_s = self._now_s()

    def paused(self) -> None:
        """What comes next is no part of a step."""
        if self._window.since_s is not None:
            self._window.lap_s += self._now_s() - self._window.since_s
            self._window.since_s = None

    def step_ended(self) -> None:
        """Count the step; at the end of a window, change to the next settings."""
        if self._restored is not None:
            self._take_order()
            self._end_with(self._restored)
            self._restored = None
        if self._is_done or self._engine.context.step < self.first:
            return
        if self._proposals is None:
            self._begin()
            return
        window = self._window
        window.end_step(self._now_s())
        num_measured = len(window.steps_s) - self._num_settling
        if num_measured == self._num_rounds * self.round:
            self._end_window(window.seconds(self._num_settling, self.round))

    def state_dict(self) -> dict[str, Any]:
        """The settings, where they are found; a search that is not done begins anew. The order of
        sums stays what it was.
        """
        settings = asdict(self._found) if self._is_done and self._windows else None
        windows = [_plain(w) for w in self._windows]
        return {"settings": settings, "windows": windows, "order": asdict(self.order)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take up another's order of sums, and at the end of the next step its settings, unless
        these are impossible here, as two lanes or gloo's transport are on GPUs: then the search
        begins anew. A run in which nothing was tuned has nothing to take up.
        """
        if not self._own.tunes_lanes:
            return
        is_fixed, trial = state_dict["order"]["is_fixed"], state_dict["order"]["trial"]
        if not is_fixed and trial is None:
            return
        self.order = Order(is_fixed=is_fixed, trial=trial and OrderTrial(**trial))
        sum_in(self._engine, is_fixed=self.order.is_fixed)
        if state_dict["settings"] is None:
            return
        settings = Settings(**state_dict["settings"])
        if not self._can_be(settings):
            return
        self._restored = settings
        self._windows = [
            Window(**{**row, "settings": Settings(**row["settings"])})
            for row in state_dict["windows"]
        ]
        self._is_done = True

    def _can_be(self, settings: Settings) -> bool:
        has_transport = settings.streams > 1 or settings.halving_doubling_bytes or settings.pieces
        is_nccls = not is_gloos(self._engine.context.communicator)
        has_lanes = settings.lanes <= self._engine.dispatcher.num_lanes
        return has_lanes and not (is_nccls and has_transport)

    def _begin(self) -> None:
        """The first window has what there is."""
        self._take_order()
        window = self._num_settling + self._num_rounds * self.round
        self._proposals = search(self._settings, self._space(), MOST_STEPS // window)
        self._settings = next(self._proposals)
        self._window = _Times(self._now_s())

    def _space(self) -> Space:
        own, given = self.scope, self._settings.halving_doubling_bytes
        if not is_gloos(self._engine.context.communicator):
            return Space(tunes_buckets=own.tunes_buckets, kind=self._kind)
        has_pattern = own.tunes_transport and not self._engine.context.communicator.shares_memory
        limits = tuple(x for x in (0, EVERY_SIZE) if x != given)
        return Space(
            tunes_buckets=own.tunes_buckets,
            streams=self.streams if own.tunes_transport else (),
            halving_doubling_bytes=limits if has_pattern else (),
            lanes=(1,),
            pieces=(not self._settings.pieces,) if own.tunes_transport else (),
            kind=self._kind,
        )

    def _kind(self, settings: Settings) -> object:
        """What the settings come to."""
        groups = self._groups(settings)
        has_pieces = settings.pieces and settings.streams > 1
        transport = settings.streams, settings.halving_doubling_bytes, has_pieces
        together = tuple(map(frozenset, _ids(groups)))  # a message is as long in any order
        return together, min(settings.lanes, len(groups)), transport

    def _groups(self, settings: Settings) -> Groups:
        if not self.scope.tunes_buckets:
            return [bucket.parameters for bucket in self._engine.context.buckets]
        order = self._orders.get(settings.by_arrival, self._orders[False])
        return grouped(order, num_held=1, bucket_bytes=settings.bucket_bytes)

    def _take_order(self) -> None:
        """Worker 0's order of gradients, for all; a collective call."""
        if not self.scope.tunes_buckets:
            return
        known = self._orders[False]
        numbers = {parameter: number for number, parameter in enumerate(known)}
        order_w = torch.tensor(
            [[numbers[p] for p in self._engine.backward.order]], device=self._device
        )
        workers = self._engine.context.communicator
        self._engine.dispatcher.run("autotuning", lambda: workers.broadcast_(order_w))
        self._orders[True] = [known[number] for number in order_w[0].tolist()]

    def _end_window(self, own_s: float) -> None:
        assert self._proposals is not None
        [step_s] = slowest(self._engine, [own_s])
        self._windows.append(
            Window(
                step=self._engine.context.step,
                settings=self._settings,
                num_buckets=len(self._engine.context.buckets),
                step_s=step_s,
            )
        )
        try:
            while not self._change_to(self._proposals.send(step_s)):
                step_s = math.inf  # of what cannot be
        except StopIteration as ended:
            self._end_with(ended.value)
            self._is_done = True
        self._window = _Times(self._now_s())

    def _end_with(self, settings: Settings) -> None:
        """In the buckets that there are, where these have to stay."""
        if not self._change_to(settings):
            now = self._settings
            self._change_to(
                replace(settings, bucket_bytes=now.bucket_bytes, by_arrival=now.by_arrival)
            )

    def _change_to(self, settings: Settings) -> bool:
        """Whether that could be: on some worker a script may hold weights' memory, which has to
        stay then. A collective call.
        """
        groups = self._groups(settings)
        moves = _ids(groups) != _ids([b.parameters for b in self._engine.context.buckets])
        if moves and self._are_held():
            return False
        before, self._settings = self._settings, settings
        transport = replace(
            before, bucket_bytes=settings.bucket_bytes, by_arrival=settings.by_arrival
        )
        if transport != settings:
            with connected_when_used():
                self._engine.dispatcher.use(
                    settings.lanes,
                    streams=settings.streams,
                    halving_doubling_bytes=settings.halving_doubling_bytes,
                    pieces=settings.pieces,
                    fixed_order=self._engine.context.communicator.fixed_order,
                )
        if moves:
            self._engine.relayout(groups)
        return True

    def _are_held(self) -> bool:
        """Whether a script on any worker has a tensor in a weight's memory: it would show what the
        weight was before it moved. A warning there says which, once; a collective call.
        """
        name = self._engine.held_weight()
        if name is not None and not self._kept:
            warnings.warn(
                f"autotune: {name} shares its memory with a tensor that the script holds "
                "(p.detach(), a state_dict(), or a graph of retain_graph=True), which would no "
                "longer follow it: buckets stay as they are; hold a clone(), or take it anew",
                stacklevel=2,
            )
        [is_held] = slowest(self._engine, [float(name is not None)])
        if is_held:
            self._kept = ("a script holds weights' memory: buckets stay as they are",)
        return bool(is_held)

    def _now_s(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # a step that the GPU has not done has no time
        return self._clock()


@dataclass
class _Times:
    """Of the steps of a window."""

    since_s: float | None = None
    lap_s: float = 0.0
    """Of the step under way, before a pause."""
    steps_s: list[float] = field(default_factory=list)

    def end_step(self, now_s: float) -> None:
        own_s = 0.0 if self.since_s is None else now_s - self.since_s
        self.steps_s.append(self.lap_s + own_s)
        self.lap_s, self.since_s = 0.0, now_s

    def seconds(self, first: int, steps_per_round: int) -> float:
        """Of a step, from the first that counts on: the median of rounds."""
        own = self.steps_s[first:]
        rounds = [own[i : i + steps_per_round] for i in range(0, len(own), steps_per_round)]
        return statistics.median(statistics.mean(one) for one in rounds)


def _ids(groups: Groups) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(map(id, group)) for group in groups)


def _plain(window: Window) -> dict[str, Any]:
    return {**asdict(window), "settings": asdict(window.settings)}
