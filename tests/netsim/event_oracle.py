"""Training, message by message and event by event, in plain Python: what the formulas have to meet.

`Workers` is the engine's schedule with a heap of events; `ring_seconds` is gloo's ring with its
segments, `looped_ring_seconds` one with more of them than are in flight, `chain_seconds` NCCL's
broadcast with its chunks, `windowed_seconds` a message of which a window is in flight. None of them
knows anything of NumPy or of the code it is compared with.
"""

import heapq
import math
from collections import deque
from dataclasses import dataclass, field


@dataclass
class Collective:
    """Takes `seconds` on an idle network and occupies every link for `busy_s` of them."""

    seconds: float
    busy_s: float
    drain_s: float
    lane: int = -1
    start_s: float = 0.0
    arrived: dict[int, float] = field(default_factory=dict)


class Workers:
    """`jobs` of one step: (seconds after backward's start, lane, list of seconds or collectives).

    A collective starts when its last worker has come to it. All links are alike; those whose bytes
    are on them get on equally fast, and latencies are twice as long while others' are.
    """

    def __init__(self, factors: list[float], forward_s: float, backward_s: float) -> None:
        self.factors = factors
        self.forward_s = forward_s
        self.backward_s = backward_s
        self.on_links: list[list] = []  # [seconds of work left, collective]
        self.at_s = 0.0

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
        while events or self.on_links:
            through_s = self._next_through_s()
            if not events or through_s < events[0][0]:
                self._get_on(through_s)
                self._end_least(events)
                continue
            at_s, lane, worker = heapq.heappop(events)
            self._get_on(at_s)
            ends_s[worker] = max(ends_s[worker], at_s)
            queue = queues[worker, lane]
            if not queue:
                continue
            item = queue.popleft()
            if isinstance(item, tuple):
                heapq.heappush(events, (max(at_s, item[1]), lane, worker))
            elif isinstance(item, Collective):
                self._arrive(item, at_s, lane, worker)
            else:
                heapq.heappush(events, (at_s + self.factors[worker] * item, lane, worker))
        return ends_s

    def _next_through_s(self) -> float:
        if not self.on_links:
            return math.inf
        return self.at_s + len(self.on_links) * min(left_s for left_s, _ in self.on_links)

    def _get_on(self, at_s: float) -> None:
        for entry in self.on_links:
            entry[0] -= (at_s - self.at_s) / len(self.on_links)
        self.at_s = at_s

    def _end_least(self, events) -> None:
        entry = min(self.on_links, key=lambda entry: entry[0])
        self.on_links.remove(entry)
        item = entry[1]
        end_s = max(item.start_s + item.seconds, self.at_s + item.drain_s)
        for participant in range(len(self.factors)):
            heapq.heappush(events, (end_s, item.lane, participant))

    def _arrive(self, item: Collective, at_s: float, lane: int, worker: int) -> None:
        item.arrived[worker] = at_s
        if len(item.arrived) == len(self.factors):
            item.lane, item.start_s = lane, at_s
            others_s = sum(left_s for left_s, _ in self.on_links)
            item.seconds += min(item.seconds - item.busy_s, others_s / 2)
            self.on_links.append([item.busy_s, item])


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


def looped_ring_seconds(
    size: int, num_segments: int, segment_s: float, delay_s: float, rendezvous: bool
) -> float:
    """Every worker's loop over all segments that it sends and receives: a turn begins when it has
    received the segment of two turns ago; then it says that it is ready, where that is needed, and
    sends the next segment behind the ones before.
    """
    free_s = [0.0] * size
    received_s = [[0.0] * size]
    for turn in range(num_segments):
        begins_s = received_s[turn - 1] if turn > 1 else [0.0] * size
        arrived_s = [0.0] * size
        for worker in range(size):
            receiver = (worker + 1) % size
            begin_s = max(begins_s[worker], free_s[worker])
            if rendezvous:
                begin_s = max(begin_s, begins_s[receiver] + delay_s)
            free_s[worker] = begin_s + segment_s
            arrived_s[receiver] = free_s[worker] + delay_s
        received_s.append(arrived_s)
    return max(received_s[-1])


def chain_seconds(num_chunks: int, chunk_s: list[float], delay_s: list[float]) -> float:
    """Worker 0 sends chunks to worker 1, which hands each on to worker 2 when it has it, and so on;
    link r carries one in `chunk_s[r]`.
    """
    free_s = [0.0] * len(chunk_s)
    arrived_s = 0.0
    for _ in range(num_chunks):
        arrived_s = 0.0  # worker 0 has all of them
        for link, (moving_s, late_s) in enumerate(zip(chunk_s, delay_s, strict=True)):
            free_s[link] = max(arrived_s, free_s[link]) + moving_s
            arrived_s = free_s[link] + late_s
    return arrived_s


def windowed_seconds(num_packets: int, packet_s: float, rtt_s: float, window: int) -> float:
    """When the last packet has left: each takes `packet_s` to leave, and waits until fewer than
    `window` are not acknowledged, which one is `rtt_s` after its first byte has left.
    """
    began_s: list[float] = []
    free_s = 0.0
    for packet in range(num_packets):
        room_s = began_s[packet - window] + rtt_s if packet >= window else 0.0
        began_s.append(max(free_s, room_s))
        free_s = began_s[-1] + packet_s
    return free_s


def growing_rounds(num_packets: float, window: float, growth: float, standing: float) -> float:
    """Round trips until the last packet leaves, of which the last window's own is halved: windows
    of so many packets, each larger than the one before it by `growth`, up to `standing`.
    """
    rounds = 0
    left = num_packets
    while left > window:
        left -= window
        window = min(window + growth, standing)
        rounds += 1
    return rounds + left / window - 0.5 if rounds else 0.0
