"""The communication lanes of all workers: clocks, and queues of what is still to happen.

    lane 0  | ready | kernel | operation | kernel |            first in, first out
    lane 1          | ready | kernel | operation | kernel |

`run` executes the contents of the lanes, operations in the order of their start. An operation takes
its own time on idle links, and its bytes occupy the links from its start on. Lanes with bytes on
the same link share it evenly until the first lane is through. So an operation under way ends later
when another one starts. Until then the starting operation has twice the latencies of idle links:
its messages and notices wait in the queue of the other lanes, which holds about a delay (see
`patterns.ring`). So lanes share bandwidth, and one lane hides the latency of another.

A token bucket before a link saves up while the link is idle, and lets that much through at once: a
link's work begins as much earlier, though not before its last work was done. This is the virtual
scheduling algorithm of ITU-T I.371.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from netsim.timeline import changes, link_sharing
from netsim.timeline.connections import Connections
from netsim.timeline.cost import Cost
from netsim.timeline.cost_model import CostedOperation, CostModel
from netsim.timeline.link_table import Array, Ranks
from netsim.timeline.tcp.windows import Windows

_NUM_STEADY = 8
"""Operations in a row that count, after as many."""


@dataclass(frozen=True, slots=True)
class Event:
    """What one worker did from when to when; `lane` -1 is compute."""

    worker: int
    lane: int
    name: str
    start_s: float
    end_s: float


@dataclass(slots=True, eq=False)
class Mark:
    """Put into a lane: `end_s [N]` tells when each worker came to it; None: not yet."""

    end_s: Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """Put into a lane: each worker waits until then, `[N]`."""

    at_s: Array


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """Put into a lane: takes so long, a number or `[N]`."""

    seconds: float | Array


Item = CostedOperation | Ready | Kernel | Mark


@dataclass(slots=True, eq=False)
class _Flight:
    """A lane's last operation; other lanes may still slow it down."""

    name: str
    ranks: Ranks
    starts_s: Array
    ends_s: Array
    crossed: Ranks  # [links of a path, ranks or 1]
    drain_s: Callable[[float], float | Array]  # by when the last byte leaves a link

    def delay(self, free_s: Array) -> None:
        if not self.crossed.size:  # everybody has sent to himself
            return
        off_s = free_s[self.crossed].max(0)
        self.ends_s = np.maximum(self.ends_s, off_s + self.drain_s(float(off_s.max())))


@dataclass(slots=True, eq=False)
class _LaneState:
    times_s: Array
    """`[N]`, after the last operation."""

    ahead_s: Array
    """`[N]`, after all that comes before the next operation."""

    pending: deque[Item] = field(default_factory=deque)
    flight: _Flight | None = None


class Lanes:
    """`num_lanes` lanes of each of N workers.

    Args:
        model: of the costs.
        num_lanes: how many.
        records_events: whether `events` fills.

    `host_s` is for how long a host that all workers share has been busy with operations, and
    `operating_s` and `kernels_s` `[lanes]` for how long operations and kernels have been under way.
    `longest` is the operation in which a worker was for the longest, and for how long, seconds.
    """

    def __init__(self, model: CostModel, num_lanes: int, *, records_events: bool) -> None:
        self.bytes_sent: Array = np.zeros(model.world_size)
        self.host_s = 0.0
        self.longest = 0.0, ""
        self.operating_s: Array = np.zeros(num_lanes)
        self.kernels_s: Array = np.zeros(num_lanes)
        self._events: list[Event] = []
        self._records_events = records_events
        self._model = model
        start_s = np.zeros(model.world_size)
        self._lanes = [_LaneState(start_s, start_s) for _ in range(num_lanes)]
        self._free_s = np.full((num_lanes, model.at(0)[0].num_links), -np.inf)
        self._connections = Connections(model.transport)

    @property
    def links_free_s(self) -> Array:
        """`[lanes, links]`: when each lane's bytes are off each link; -inf: there were none."""
        return self._free_s.copy()

    @links_free_s.setter
    def links_free_s(self, free_s: Array) -> None:
        if free_s.shape == self._free_s.shape:  # else those links are not of this network
            self._free_s[:] = free_s

    @property
    def events(self) -> list[Event]:
        """All that happened, if it is recorded."""
        under_way = [
            event
            for index, lane in enumerate(self._lanes)
            if lane.flight is not None and self._records_events
            for event in _events(index, lane.flight)
        ]
        return [*self._events, *under_way]

    def put(self, lane: int, item: Item) -> None:
        """Add to the end of a lane."""
        self._lanes[lane].pending.append(item)

    def times_s(self, lane: int) -> Array:
        """`[N]`: when each worker's lane has done all that `run` has seen."""
        return self._lanes[lane].ahead_s

    def run(self) -> None:
        """Let everything happen that has been put into the lanes.

        Raises:
            UserError: if an operation never ends.
            ValueError: if it has an unknown name.
        """
        starts_s = [self._look_ahead(lane) for lane in self._lanes]
        while (start_s := min(starts_s)) < np.inf:
            index = starts_s.index(start_s)
            for changed in (index, *self._operate(index, start_s)):
                starts_s[changed] = self._look_ahead(self._lanes[changed])

    def settle(self, lane: int) -> None:
        """What a lane has done so far stays as it is: all wait for it now."""
        self._pass(lane)
        self._land(lane)

    def _look_ahead(self, lane: _LaneState) -> float:
        """When the lane's next operation starts, once all before it is done; inf: there is none."""
        lane.ahead_s = lane.times_s
        for item in lane.pending:
            if isinstance(item, Ready):
                lane.ahead_s = np.maximum(lane.ahead_s, item.at_s)
            elif isinstance(item, Kernel):
                lane.ahead_s = lane.ahead_s + item.seconds
            elif isinstance(item, Mark):
                item.end_s = lane.ahead_s
            else:
                return float(lane.ahead_s[self._model.ranks(item)].max())
        return np.inf

    def _pass(self, index: int) -> None:
        """Leave behind all that comes before the next operation."""
        lane = self._lanes[index]
        while lane.pending and isinstance(lane.pending[0], Ready | Kernel | Mark):
            item = lane.pending.popleft()
            if isinstance(item, Ready):
                lane.times_s = np.maximum(lane.times_s, item.at_s)
            elif isinstance(item, Kernel):
                before_s, lane.times_s = lane.times_s, lane.times_s + item.seconds
                self.kernels_s[index] += np.max(item.seconds)
                if self._records_events:
                    everyone = np.arange(len(before_s))
                    self._events += spans(index, "kernel", everyone, before_s, lane.times_s)

    def _land(self, index: int) -> None:
        lane = self._lanes[index]
        if lane.flight is not None and self._records_events:
            self._events += _events(index, lane.flight)
        lane.flight = None

    def _operate(self, index: int, start_s: float) -> list[int]:
        """Start a lane's next operation, to which the last comes then; the lanes it slows down."""
        lane = self._lanes[index]
        self._pass(index)
        self._land(index)
        operation = lane.pending.popleft()
        assert not isinstance(operation, Ready | Kernel | Mark)
        ranks = self._model.ranks(operation)
        key = (index, self._model.connections(operation))
        starts_s = lane.times_s
        windows = self._connections.windows(key, start_s)
        start = self._collective if operation.peers is None else self._exchange
        cost, lane.flight, slowed = start(index, operation, ranks, windows)
        lane.times_s = starts_s.copy()
        lane.times_s[lane.flight.ranks] = lane.flight.ends_s
        lasted_s = float((lane.flight.ends_s - lane.flight.starts_s).max(initial=0.0))
        self.longest = max(self.longest, (lasted_s, operation.name))
        end_s = float(lane.times_s[ranks].max())
        self._connections.used(key, cost, end_s)
        self.host_s += cost.host_s
        self.operating_s[index] += end_s - start_s
        self.bytes_sent += cost.sent_bytes * self._model.wire_per_payload
        return slowed

    def _collective(
        self, index: int, operation: CostedOperation, ranks: Ranks, windows: Windows
    ) -> tuple[Cost, _Flight, list[int]]:
        """It starts for all when the last has come, and ends for all at the same time."""
        starts_s = self._lanes[index].times_s[ranks]
        start_s = starts_s.max(keepdims=True)
        cost, end_s, _ = changes.finish(self._model, operation, windows, start_s)
        links = cost.links
        behind_s, saved_s, slowed = self._occupy(index, operation, windows, cost, start_s)
        if saved_s is not None:
            end_s = end_s - _sooner_s(cost, saved_s, links, cost.seconds)
        if behind_s is not None:
            latency_s = cost.seconds - cost.busy_s.max()
            end_s = end_s + _queueing_s(latency_s, behind_s.max())
        drain_s = self._drain_s(operation, windows, cost.drain_s)
        flight = _Flight(operation.name, ranks, starts_s, end_s, links[:, None], drain_s)
        if len(links):
            flight.delay(self._free_s[index])
        return cost, flight, slowed

    def _exchange(
        self, index: int, operation: CostedOperation, ranks: Ranks, windows: Windows
    ) -> tuple[Cost, _Flight, list[int]]:
        """Each worker waits for what it receives, and until its own message is handed over; with a
        rendezvous a message leaves only at its receiver's word.
        """
        times_s = self._lanes[index].times_s
        begins_s = times_s[ranks]
        route = self._model.route(operation)
        table, _ = self._model.at(float(begins_s.min()))
        cost = self._model.cost(operation, table, windows)
        sends_s = times_s[route.senders]
        if self._model.transport.rendezvous:
            sends_s = np.maximum(sends_s, begins_s + cost.notice_s)
        cost, ends_s, handed_over_s = changes.finish(self._model, operation, windows, sends_s)
        moves, crossed = route.moves, route.crossed
        first_s = self._first_use_s(crossed, sends_s[moves])
        behind_s, saved_s, slowed = self._occupy(
            index, operation, windows, cost, first_s[cost.links]
        )
        if saved_s is not None:
            seconds = np.asarray(cost.seconds)[moves]
            sooner_s = _sooner_s(cost, saved_s, crossed, seconds)
            ends_s[moves] -= sooner_s
            handed_over_s[moves] = np.maximum(handed_over_s[moves] - sooner_s, sends_s[moves])
        drain_s = np.asarray(cost.drain_s)[moves]
        if behind_s is not None:
            first_s[cost.links] = behind_s
            ends_s[moves] += _queueing_s(drain_s, first_s[crossed].max(0))
        ends_s = np.maximum(ends_s, handed_over_s[route.places])
        flight = _Flight(
            operation.name,
            ranks[moves],
            begins_s[moves],
            ends_s[moves],
            crossed,
            self._drain_s(operation, windows, drain_s, moves),
        )
        flight.delay(self._free_s[index])
        return cost, flight, slowed

    def _drain_s(
        self,
        operation: CostedOperation,
        windows: Windows,
        at_start_s: float | Array,
        moves: Ranks | None = None,
    ) -> Callable[[float], float | Array]:
        """What is left when an operation's last byte leaves a link, by when it does: as long as
        links do not change, what was left at the start. Of the messages `moves` of an exchange.
        """
        model = self._model

        def drain_s(at_s: float) -> float | Array:
            if not np.isfinite(at_s):  # there is no byte
                return at_start_s
            left_s = model.cost(operation, model.at(at_s)[0], windows).drain_s
            return left_s if moves is None else np.asarray(left_s)[moves]

        return drain_s if model.varies else lambda _: at_start_s

    def _first_use_s(self, crossed: Ranks, sends_s: Array) -> Array:
        """`[links]`: when the first of some messages comes to each link."""
        first_s = np.full(self._free_s.shape[1], np.inf)
        first_s[crossed[[0, -1]]] = sends_s
        np.minimum.at(first_s, crossed[1:-1], np.broadcast_to(sends_s, crossed[1:-1].shape))
        return first_s

    def _occupy(
        self, index: int, operation: CostedOperation, windows: Windows, cost: Cost, begins_s: Array
    ) -> tuple[Array | None, Array | None, list[int]]:
        """Put an operation's bytes on its links `[l]`.

        Returns:
            for how long others' bytes would have been there, `[l]`, None where that slows nobody;
            what token buckets had saved, `[links]`, None if there are none; these others' lanes.
        """
        links = cost.links
        if not len(links):
            return None, None, []
        before_s = np.take(self._free_s, links, axis=1)  # by lanes in memory, as [:, links] is not
        saved_s = self._saved_s(links, begins_s, before_s)
        begins_s = np.maximum(begins_s, before_s[index])
        busy_s, late_s = changes.busy_s(self._model, operation, windows, cost, begins_s)
        begins_s = begins_s + late_s
        works_s = begins_s if saved_s is None else begins_s - saved_s[links]
        self._free_s[:, links] = link_sharing.shared(before_s, index, works_s, busy_s)
        slowed = []
        for other, lane in enumerate(self._lanes):
            if other != index and lane.flight is not None and (before_s[other] > begins_s).any():
                lane.flight.delay(self._free_s[other])
                lane.times_s = lane.times_s.copy()
                lane.times_s[lane.flight.ranks] = lane.flight.ends_s
                slowed.append(other)
        behind_s = np.maximum(before_s.max(0) - begins_s, 0) if slowed else None
        return behind_s, saved_s, slowed

    def _saved_s(self, links: Ranks, begins_s: Array, free_s: Array) -> Array | None:
        """`[links]`: what the token buckets of links `[l]` have saved, which were in use by lanes
        until `free_s` `[lanes, l]`; None: there are no buckets.
        """
        if not self._model.has_buckets:
            return None
        buckets_s = self._model.at(float(begins_s.min()))[0].buckets_s
        saved_s = np.zeros_like(buckets_s)
        saved_s[links] = np.clip(begins_s - free_s.max(0), 0, buckets_s[links])
        return saved_s


def steady_s(model: CostModel, operation: CostedOperation) -> float:
    """What one of many operations in a row takes: it finds windows and token buckets as those
    before it have left them.
    """
    lanes, ends_s = Lanes(model, 1, records_events=False), []
    for _ in range(2 * _NUM_STEADY):
        lanes.put(0, operation)
        lanes.run()
        ends_s.append(float(lanes.times_s(0).max()))
    return (ends_s[-1] - ends_s[-1 - _NUM_STEADY]) / _NUM_STEADY


def _sooner_s(cost: Cost, saved_s: Array, crossed: Ranks, seconds: float | Array) -> Array:
    """By how much sooner messages are through that cross links `[crossed, ...]` and take so long
    where no token bucket has saved anything; a host that all share is not faster for it.
    """
    busy_s = cost.busy_s[crossed]
    sooner_s = busy_s.max(0) - np.maximum(busy_s - saved_s[crossed], 0).max(0)
    return np.minimum(sooner_s, seconds - cost.host_s)


def _queueing_s(latency_s: float | Array, behind_s: float | Array) -> Array:
    """Seconds added to latencies, which double while others' bytes are on the links."""
    return np.minimum(latency_s, np.asarray(behind_s) / 2)


def spans(lane: int, name: str, ranks: Ranks, starts_s: Array, ends_s: Array) -> list[Event]:
    """One event for each worker."""
    ends_s = np.broadcast_to(ends_s, starts_s.shape)
    values = zip(ranks.tolist(), starts_s.tolist(), ends_s.tolist(), strict=True)
    return [Event(rank, lane, name, start_s, end_s) for rank, start_s, end_s in values]


def _events(index: int, flight: _Flight) -> list[Event]:
    return spans(index, flight.name, flight.ranks, flight.starts_s, flight.ends_s)
