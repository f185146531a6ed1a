"""The route and time of every packet: the switch without its sockets."""

from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Protocol

from netsim.conditions.condition import NetworkCondition
from netsim.links.netlink import mac_address
from netsim.links.wire import VNET_HEADER, Link, wire_bytes

_TARGET = slice(VNET_HEADER.size, VNET_HEADER.size + 6)
_SHORTEST = VNET_HEADER.size + 14


class Sender(Protocol):
    """Takes packets with a virtio header; False: it did not."""

    def send(self, packet: bytes) -> bool:
        """Hand over one packet."""
        ...


@dataclass(frozen=True, slots=True)
class _Path:
    links: tuple[Link, ...]
    port: Sender


_Event = tuple[float, int, float, int, bytes, int, _Path]
"""A packet under way: when its last bit arrives, a serial number, how long before that its first
bit does, how many links lie behind it, itself, its bytes on a wire, and its path."""


class Forwarder:
    """Carries packets between the workers' ports over links that follow the condition.

    Args:
        condition: of the links.
        ports: of the workers, by rank.
    """

    def __init__(self, condition: NetworkCondition, ports: list[Sender]) -> None:
        self.num_forwarded = 0
        self.num_refused = 0
        self._condition = condition
        self._ups = [Link(condition.link(r, "up"), 2 * r) for r in range(len(ports))]
        self._downs = [Link(condition.link(r, "down"), 2 * r + 1) for r in range(len(ports))]
        nodes = range(len(ports), len(ports) + condition.node(len(ports) - 1) + 1)
        self._node_ups = [Link(condition.node_link("up"), 2 * n) for n in nodes]
        self._node_downs = [Link(condition.node_link("down"), 2 * n + 1) for n in nodes]
        self._ports = ports
        self._ranks = {bytes.fromhex(mac_address(r).replace(":", "")): r for r in range(len(ports))}
        self._waiting: list[_Event] = []
        self._serials = count()
        self._paths: list[dict[bytes, _Path]] = [{} for _ in ports]

    @property
    def links(self) -> list[Link]:
        """All links: of workers and of nodes, up and down."""
        return [*self._ups, *self._downs, *self._node_ups, *self._node_downs]

    @property
    def next_due_s(self) -> float | None:
        """When the first of the packets under way arrives somewhere; None: there is none."""
        return self._waiting[0][0] if self._waiting else None

    def take(self, rank: int, packet: bytes, arrived_s: float) -> None:
        """Accept a packet that a worker has sent. What goes to nobody is dropped."""
        if len(packet) < _SHORTEST:
            return
        target = packet[_TARGET]
        if target[0] & 1:  # broadcast, multicast
            self._flood(rank, packet, arrived_s)
            return
        if path := self._paths[rank].get(target) or self._find_path(rank, target):
            self._wait(arrived_s, 0.0, 0, packet, wire_bytes(packet), path)

    def deliver(self, now_s: float) -> int:
        """Move on every packet that is due, in the order of time; bytes that have arrived."""
        waiting, num_bytes_delivered = self._waiting, 0
        while waiting and waiting[0][0] <= now_s:
            arrival_s, serial, arriving_s, stage, packet, num_bytes, path = waiting[0]
            if stage == len(path.links):
                heappop(waiting)
                num_bytes_delivered += num_bytes
                if path.port.send(packet):
                    self.num_forwarded += 1
                else:
                    self.num_refused += 1
            elif crossed := path.links[stage].cross(arrival_s, arriving_s, num_bytes):
                event = (crossed[0], serial, crossed[1], stage + 1, packet, num_bytes, path)
                heapreplace(waiting, event)
            else:
                heappop(waiting)
        return num_bytes_delivered

    def change(self, at_s: float) -> None:
        """Make the links what they are at a time since training began."""
        for rank, (up, down) in enumerate(zip(self._ups, self._downs, strict=True)):
            up.condition = self._condition.link(rank, "up", at_s)
            down.condition = self._condition.link(rank, "down", at_s)

    def _wait(
        self,
        arrival_s: float,
        arriving_s: float,
        stage: int,
        packet: bytes,
        num_bytes: int,
        path: _Path,
    ) -> None:
        event = (arrival_s, next(self._serials), arriving_s, stage, packet, num_bytes, path)
        heappush(self._waiting, event)

    def _flood(self, rank: int, packet: bytes, arrived_s: float) -> None:
        """To all others: over the sender's uplink once, and then over each path's rest."""
        num_bytes = wire_bytes(packet)
        if crossed := self._ups[rank].cross(arrived_s, 0.0, num_bytes):
            for other in range(len(self._ports)):
                if other != rank:
                    self._wait(*crossed, 1, packet, num_bytes, self._path(rank, other))

    def _find_path(self, rank: int, target: bytes) -> _Path | None:
        """The way to a MAC address; None: it is the sender's own, or nobody's."""
        receiver = self._ranks.get(target, rank)
        if receiver == rank:
            return None
        path = self._paths[rank][target] = self._path(rank, receiver)
        return path

    def _path(self, sender: int, receiver: int) -> _Path:
        nodes = self._condition.node(sender), self._condition.node(receiver)
        between = (self._node_ups[nodes[0]], self._node_downs[nodes[1]])
        crossing = between if nodes[0] != nodes[1] else ()
        links = (self._ups[sender], *crossing, self._downs[receiver])
        return _Path(links, self._ports[receiver])
