"""The communication lanes of all workers: clocks, and queues of what is still to happen.

    lane 0  | ready | kernel | operation | kernel |            first in, first out
    lane 1          | ready | kernel | operation | kernel |
    links     one clock each: free from then on

What was put into the lanes happens in `run`, the operation that starts first before the others.
An operation takes its own time on idle links; where a link is still occupied by bytes of another
lane, its own come after them. So lanes share bandwidth, and one hides the latency of another.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from netsim.connections import Connections
from netsim.link_table import Array, Ranks
from netsim.model import CostModel, Operation
from netsim.patterns import Cost
from netsim.tcp_throughput import WIRE_PER_PAYLOAD


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


Item = Operation | Ready | Kernel | Mark


@dataclass(slots=True, eq=False)
class _Lane:
    times_s: Array
    pending: deque[Item] = field(default_factory=deque)


class Lanes:
    """`num_lanes` lanes of each of N workers.

    Args:
        model: of the costs.
        num_lanes: how many.
        records_events: whether `events` fills.
    """

    def __init__(self, model: CostModel, num_lanes: int, *, records_events: bool) -> None:
        self.bytes_sent: Array = np.zeros(model.world_size)
        self.events: list[Event] = []
        self._records_events = records_events
        self._model = model
        self._lanes = [_Lane(np.zeros(model.world_size)) for _ in range(num_lanes)]
        self._free_s = np.zeros(model.at(0)[0].num_links)
        self._connections = Connections(model.transport)

    def put(self, lane: int, item: Item) -> None:
        """Add to the end of a lane."""
        self._lanes[lane].pending.append(item)

    def times_s(self, lane: int) -> Array:
        """`[N]`: when each worker's lane has done all that `run` has seen."""
        return self._lanes[lane].times_s

    def run(self) -> None:
        """Let everything happen that has been put into the lanes.

        Raises:
            ValueError: if an operation never ends, or has an unknown name.
        """
        starts_s = [self._next_start_s(lane) for lane in range(len(self._lanes))]
        while (start_s := min(starts_s)) < np.inf:
            lane = starts_s.index(start_s)
            self._operate(lane)
            starts_s[lane] = self._next_start_s(lane)

    def _next_start_s(self, index: int) -> float:
        """When the lane's next operation starts, once all before it is done; inf: there is none."""
        lane = self._lanes[index]
        while lane.pending:
            item = lane.pending[0]
            if isinstance(item, Ready):
                lane.times_s = np.maximum(lane.times_s, item.at_s)
            elif isinstance(item, Kernel):
                self._record(index, "kernel", lane.times_s, lane.times_s + item.seconds)
                lane.times_s = lane.times_s + item.seconds
            elif isinstance(item, Mark):
                item.end_s = lane.times_s
            else:
                return float(lane.times_s[self._model.ranks(item)].max())
            lane.pending.popleft()
        return np.inf

    def _operate(self, index: int) -> None:
        lane = self._lanes[index]
        operation = lane.pending.popleft()
        assert not isinstance(operation, Ready | Kernel | Mark)
        ranks = self._model.ranks(operation)
        key = (index, self._model.connections(operation))
        starts_s = lane.times_s
        window_bytes = self._connections.window_bytes(key, float(starts_s[ranks].max()))
        if operation.peers is None:
            cost, ends_s = self._collective(operation, starts_s, ranks, window_bytes)
        else:
            cost, ends_s = self._exchange(operation, starts_s, ranks, window_bytes)
        self._connections.used(key, cost, float(ends_s[ranks].max()))
        self.bytes_sent += cost.sent_bytes * WIRE_PER_PAYLOAD
        self._record(index, operation.name, starts_s, ends_s, ranks)
        lane.times_s = ends_s

    def _collective(
        self, operation: Operation, starts_s: Array, ranks: Ranks, window_bytes: float
    ) -> tuple[Cost, Array]:
        """It starts for all when the last has come, and ends for all at the same time."""
        start_s = starts_s[ranks].max(keepdims=True)
        cost, end_s = self._finish(operation, start_s, window_bytes)
        links = cost.links
        if len(links):
            free_s = np.maximum(self._free_s[links], start_s) + cost.busy_s[links]
            self._free_s[links] = free_s
            end_s = np.maximum(end_s, free_s.max() + cost.drain_s)
        ends_s = starts_s.copy()
        ends_s[ranks] = end_s
        return cost, ends_s

    def _exchange(
        self, operation: Operation, starts_s: Array, ranks: Ranks, window_bytes: float
    ) -> tuple[Cost, Array]:
        """Each worker waits for what it receives, and until its own message is handed over; with a
        rendezvous a message leaves only at its receiver's word.
        """
        begins_s = starts_s[ranks]
        froms = self._model.senders(operation)
        assert operation.peers is not None
        to = np.searchsorted(ranks, operation.peers)
        table, _ = self._model.at(float(begins_s.min()))
        cost = self._model.cost(operation, table, window_bytes)
        sends_s = starts_s[froms]
        if self._model.transport.rendezvous:
            sends_s = np.maximum(sends_s, begins_s + cost.notice_s)
        cost, ends_s = self._finish(operation, sends_s, window_bytes)
        ends_s = self._share_links(cost, table.crossed(froms, ranks), sends_s, ends_s)
        ends_s = np.maximum(ends_s, (sends_s + cost.handover_s)[to])
        after_s = starts_s.copy()
        after_s[ranks] = np.where(froms == ranks, begins_s, ends_s)
        return cost, after_s

    def _share_links(self, cost: Cost, crossed: Ranks, sends_s: Array, ends_s: Array) -> Array:
        """The ends `[n]` of messages that cross the links `[4, n]`, behind what is on them."""
        links = cost.links
        begins_s = np.full(len(self._free_s), np.inf)
        np.minimum.at(begins_s, crossed, np.broadcast_to(sends_s, crossed.shape))
        self._free_s[links] = np.maximum(self._free_s[links], begins_s[links]) + cost.busy_s[links]
        return np.maximum(ends_s, self._free_s[crossed].max(0) + cost.drain_s)

    def _finish(
        self, operation: Operation, starts_s: Array, window_bytes: float
    ) -> tuple[Cost, Array]:
        """The cost at the start, and the ends `[n]` of what started then.

        While links change, an operation that would take T there gets on by the share dt / T.
        """
        at_s = starts_s
        left = np.ones_like(starts_s)
        table, until_s = self._model.at(float(starts_s.min()))
        first = cost = self._model.cost(operation, table, window_bytes)
        while True:
            ends_s = at_s + left * cost.seconds
            if until_s == np.inf or (ends_s <= until_s).all():
                break
            moved_s = np.clip(until_s - at_s, 0, left * cost.seconds)
            left = left - np.divide(
                moved_s, cost.seconds, out=np.zeros_like(left), where=moved_s > 0
            )
            at_s = np.maximum(at_s, np.minimum(ends_s, until_s))
            table, until_s = self._model.at(until_s)
            cost = self._model.cost(operation, table, window_bytes)
        if not np.isfinite(ends_s).all():
            raise ValueError(
                f"{operation.name} never ends: a link that it needs is down for ever from "
                f"{at_s.max():g} s on; give the fault an end, or loss_pct less than 100."
            )
        return first, ends_s

    def _record(
        self, lane: int, name: str, starts_s: Array, ends_s: Array, ranks: Ranks | None = None
    ) -> None:
        if not self._records_events:
            return
        for rank in range(len(starts_s)) if ranks is None else ranks:
            self.events.append(
                Event(int(rank), lane, name, float(starts_s[rank]), float(ends_s[rank]))
            )
