"""One direction of one link, as the switch models it.

    start     = max(time the first bit arrives, time the link is free)
    departure = max(start + wire_bytes * 8 / rate, time the last bit arrives)
    due       = max(departure + delay + jitter, due of the packet before)

What finds more than the queue's length before it is dropped. A token bucket is not needed. A
packet on its second link starts to leave when its first bit arrives, so that a 64 KB packet,
which stands for 45 frames, is not stored and forwarded as a whole.
"""

import random
import struct

from netsim.conditions.link import LinkCondition

VNET_HEADER = struct.Struct("=BBHHHH")
"""virtio_net_hdr: flags, gso_type, hdr_len, gso_size, csum_start, csum_offset."""

_NEEDS_CSUM = 1
_GSO_TCP = (1, 4)
_GSO_ECN = 0x80
_ETHERNET_BYTES = 14


class Link:
    """A link's state: when it is free, and what became of its packets.

    Args:
        condition: what it is like; assign to `condition` to change it.
        seed: of its losses and jitter.
    """

    def __init__(self, condition: LinkCondition, seed: int) -> None:
        self.condition = condition
        self.num_lost = 0
        self.num_dropped = 0
        self._random = random.Random(seed).random
        self._free_s = 0.0
        self._due_s = 0.0

    @property
    def condition(self) -> LinkCondition:
        """What the link is like now. Packets that wait for it or are under way stay as they are."""
        return self._condition

    @condition.setter
    def condition(self, condition: LinkCondition) -> None:
        self._condition = condition
        self._seconds_per_byte = condition.seconds_per_byte
        self._queue_s = condition.queue_ms / 1000
        self._delay_s = condition.delay_ms / 1000
        self._jitter_s = condition.jitter_ms / 1000
        self._loss = condition.loss_pct / 100

    def cross(
        self, arrival_s: float, arriving_s: float, num_bytes: int
    ) -> tuple[float, float] | None:
        """When a packet is at the link's other end.

        Packets have to come in the order of their arrival.

        Args:
            arrival_s: when its last bit came.
            arriving_s: how long before that its first bit came.
            num_bytes: on the wire.

        Returns:
            when its last bit is there and how long before that its first; None: it is lost.
        """
        if self._loss and self._random() < self._loss:
            self.num_lost += 1
            return None
        departure_s, leaving_s = arrival_s, arriving_s
        if self._seconds_per_byte:
            if self._free_s - arrival_s > self._queue_s:
                self.num_dropped += 1
                return None
            leaving_s = num_bytes * self._seconds_per_byte
            self._free_s = max(arrival_s - arriving_s, self._free_s) + leaving_s
            departure_s = max(self._free_s, arrival_s)
        due_s = departure_s + self._delay_s
        if self._jitter_s:
            due_s += self._jitter_s * (2 * self._random() - 1)
        self._due_s = max(due_s, self._due_s)
        return self._due_s, leaving_s


def wire_bytes(packet: bytes) -> int:
    """Bytes that a frame with its virtio header before it takes on a wire.

    A GSO packet is sent as many frames, each with the headers of its own that this counts.
    """
    num_bytes = len(packet) - VNET_HEADER.size
    if not packet[1] or num_bytes < _ETHERNET_BYTES:
        return num_bytes
    flags, gso_type, _, segment_bytes, transport, _ = VNET_HEADER.unpack_from(packet)
    header_bytes = transport + 8 if flags & _NEEDS_CSUM else 0  # as for UDP
    if gso_type & ~_GSO_ECN in _GSO_TCP and transport + 12 < num_bytes:
        header_bytes = transport + 4 * (packet[VNET_HEADER.size + transport + 12] >> 4)
    if not segment_bytes or not 0 < header_bytes < num_bytes:
        return num_bytes
    num_segments = -((header_bytes - num_bytes) // segment_bytes)
    return num_bytes + (num_segments - 1) * header_bytes
