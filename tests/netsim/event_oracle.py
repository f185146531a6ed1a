"""Training, message by message and event by event, in plain Python: what the formulas have to meet.

`Workers` is the engine's schedule with a heap of events; `ring_seconds` is gloo's ring with its
segments. Neither knows anything of NumPy or of the code it is compared with.
"""

import heapq
from collections import deque
from dataclasses import dataclass, field


@dataclass
class Collective:
    """Takes `seconds` on an idle network and occupies every link for `busy_s` of them."""

    seconds: float
    busy_s: float
    drain_s: float
    arrived: dict[int, float] = field(default_factory=dict)


class Workers:
    """`jobs` of one step: (seconds after backward's start, lane, list of seconds or collectives).

    A collective starts when its last worker has come to it. Its bytes leave after those of the
    collectives that started before it.
    """

    def __init__(self, factors: list[float], forward_s: float, backward_s: float) -> None:
        self.factors = factors
        self.forward_s = forward_s
        self.backward_s = backward_s
        self.free_s = 0.0

    def step(self, begin_s: list[float], jobs, num_lanes: int) -> list[float]:
        """When each worker has done its backward pass and all its jobs."""
        queues = {
            (worker, lane): deque(
                item
                for ready_s, its_lane, work in jobs
                if its_lane == lane
                for item in [
                    ("until", begin_s[worker] + factor * (self.forward_s + ready_s)),
                    *work,
                ]
            )
            for worker, factor in enumerate(self.factors)
            for lane in range(num_lanes)
        }
        ends_s = [
            begin_s[worker] + factor * (self.forward_s + self.backward_s)
            for worker, factor in enumerate(self.factors)
        ]
        events = [(begin_s[worker], lane, worker) for worker, lane in queues]
        heapq.heapify(events)
        while events:
            at_s, lane, worker = heapq.heappop(events)
            ends_s[worker] = max(ends_s[worker], at_s)
            queue = queues[worker, lane]
            if not queue:
                continue
            item = queue.popleft()
            if isinstance(item, tuple):
                heapq.heappush(events, (max(at_s, item[1]), lane, worker))
            elif isinstance(item, Collective):
                self._arrive(events, item, at_s, lane, worker)
            else:
                heapq.heappush(events, (at_s + self.factors[worker] * item, lane, worker))
        return ends_s

    def _arrive(self, events, item: Collective, at_s: float, lane: int, worker: int) -> None:
        item.arrived[worker] = at_s
        if len(item.arrived) < len(self.factors):
            return
        self.free_s = max(self.free_s, at_s) + item.busy_s
        end_s = max(at_s + item.seconds, self.free_s + item.drain_s)
        for participant in range(len(self.factors)):
            heapq.heappush(events, (end_s, lane, participant))


def ring_seconds(
    num_hops: int, piece_s: list[float], delay_s: list[float], num_segments: int, rendezvous: bool
) -> float:
    """Worker r hands pieces on to worker r + 1 over a link of its own, `num_hops` times.

    A segment leaves when the same segment of the hop before has come, the segments before it have
    left, and, with a rendezvous, its receiver has had that same one of its own and said so.
    """
    size = len(piece_s)
    free_s = [0.0] * size
    ready_s = [[0.0] * size for _ in range(num_segments)]
    for _ in range(num_hops):
        for segment in range(num_segments):
            arrived_s = [0.0] * size
            for worker in range(size):
                receiver = (worker + 1) % size
                begin_s = max(ready_s[segment][worker], free_s[worker])
                if rendezvous:
                    word_s = ready_s[segment][receiver] + delay_s[receiver]
                    begin_s = max(begin_s, word_s)
                free_s[worker] = begin_s + piece_s[worker] / num_segments
                arrived_s[receiver] = free_s[worker] + delay_s[worker]
            ready_s[segment] = arrived_s
    return max(max(times) for times in ready_s)
