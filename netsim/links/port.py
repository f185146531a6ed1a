"""A raw packet socket on one interface, read through a ring of memory shared with the kernel.

The ring holds what a sender may have in flight, without the right to raise a socket's buffer,
which an ordinary user lacks. Packets come and go with the virtio header before them, so that
a GSO packet of 64 KB is one. See packet(7) and Documentation/networking/packet_mmap.rst.
"""

import mmap
import socket
import struct
from collections.abc import Iterator

_SOL_PACKET = 263
_PACKET_RX_RING = 5
_PACKET_STATISTICS = 6
_PACKET_VERSION = 10
_PACKET_VNET_HDR = 15
_PACKET_IGNORE_OUTGOING = 23
_TPACKET_V2 = 1
_ETH_P_ALL = 3

_KERNELS, _OURS = 0, 1
"""Whose a slot of the ring is."""

_read_header = struct.Struct("=IIIHHII").unpack_from
"""tpacket2_hdr: status, length, captured length, offset of the frame, offset of its IP header,
seconds and nanoseconds of the wall clock when it came."""

_STATUS_BYTES = 4
_VNET_BYTES = 10
_SLOT_UNIT, _RING_BYTES = 2_048, 128
"""Slots for single frames are so many bytes or a multiple; the ring's own are at most the second.
"""
_PAGES_PER_SLOT = 17  # 64 KB, with Ethernet's and the ring's headers
_SLOTS_PER_BLOCK = 15  # nearly fill 2^8 pages, which the kernel takes at once
_MAX_BURST = 64


class Port:
    """One interface of this network namespace, for packets with a virtio header.

    Args:
        interface: which has to be up.
        most_bytes: that it carries at once, the Ethernet header included; None: 64 KB.
        num_blocks: of the ring, of about 1 MB each.

    Raises:
        OSError: if the kernel refuses packet sockets.
    """

    def __init__(
        self, interface: str, *, most_bytes: int | None = None, num_blocks: int = 12
    ) -> None:
        # Protocol 0 hears nothing: not of other interfaces either until it is bound to its own.
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
        for option in (_PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING):
            self._socket.setsockopt(_SOL_PACKET, option, 1)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_VERSION, _TPACKET_V2)
        block_bytes = _SLOTS_PER_BLOCK * _PAGES_PER_SLOT * mmap.PAGESIZE
        slot_bytes = _PAGES_PER_SLOT * mmap.PAGESIZE
        if most_bytes is not None:
            slot_bytes = -(-(most_bytes + _RING_BYTES) // _SLOT_UNIT) * _SLOT_UNIT
        num_slots = num_blocks * (block_bytes // slot_bytes)
        request = struct.pack("=IIII", block_bytes, num_blocks, slot_bytes, num_slots)
        self._socket.setsockopt(_SOL_PACKET, _PACKET_RX_RING, request)
        self._ring = mmap.mmap(self._socket.fileno(), num_blocks * block_bytes)
        # Assigning to an element is one store. `struct.pack_into` clears the bytes and then writes
        # them: the kernel would fill a slot in between, and its word that it has be overwritten.
        self._statuses = memoryview(self._ring).cast("I")
        self._slots = [
            block * block_bytes + slot * slot_bytes
            for block in range(num_blocks)
            for slot in range(block_bytes // slot_bytes)
        ]
        self._next = 0
        self._num_unread = 0
        self.was_emptied = False
        self._socket.bind((interface, _ETH_P_ALL))

    def fileno(self) -> int:
        """For `select`."""
        return self._socket.fileno()

    def packets(self) -> Iterator[tuple[float, bytes]]:
        """What has come since the last call, in order, and no more than a burst of it.

        Each with the time of its arrival by the wall clock, in seconds. `was_emptied` then says
        whether nothing was left. It looks at memory alone, without a call of the kernel.
        """
        ring, statuses, slots = self._ring, self._statuses, self._slots
        self.was_emptied = False
        for _ in range(_MAX_BURST):
            slot = slots[self._next]
            status, length, captured, begin, _, seconds, nanoseconds = _read_header(ring, slot)
            if not status & _OURS:
                self.was_emptied = True
                return
            packet = ring[slot + begin - _VNET_BYTES : slot + begin + captured]
            statuses[slot // _STATUS_BYTES] = _KERNELS
            self._next = (self._next + 1) % len(slots)
            if captured == length:  # else it is larger than any that a link may carry
                yield seconds + 1e-9 * nanoseconds, packet
            else:
                self._num_unread += 1

    def send(self, packet: bytes) -> bool:
        """Hand a packet with its virtio header to the interface; False: it does not take it."""
        try:
            self._socket.send(packet)
        except OSError:  # the interface is gone, or the headers are nonsense
            return False
        return True

    def is_gone(self) -> bool:
        """Whether the interface has vanished since the last call: its worker has ended."""
        status = _read_header(self._ring, self._slots[self._next])[0]
        if status & _OURS:
            return False  # not asked while there are packets
        return self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    def num_unread(self) -> int:
        """Packets that came while the ring was full, or were too large: all since it was made."""
        answer = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        self._num_unread += struct.unpack("=II", answer)[1]
        return self._num_unread

    def close(self) -> None:
        """Release the socket and its ring."""
        self._statuses.release()
        self._ring.close()
        self._socket.close()
