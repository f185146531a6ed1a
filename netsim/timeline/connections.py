"""The congestion windows of the connections between workers, kept from one operation to the next.

One window stands for all connections that an operation uses at the same time.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from netsim.timeline import tcp_throughput
from netsim.timeline.cost import Cost
from netsim.timeline.transport import Transport

_MAX_CONNECTIONS = 1024


@dataclass(slots=True)
class _Connection:
    window_bytes: float
    rtt_s: float
    used_s: float


class Connections:
    """Windows by set of connections: a lane, a pattern and its workers.

    Args:
        transport: of the hosts.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._connections: dict[Hashable, _Connection] = {}

    def window_bytes(self, key: Hashable, at_s: float) -> float:
        """The window at a time; the initial one where there has been no traffic yet."""
        initial_bytes = self._transport.initial_window_bytes
        connection = self._connections.get(key)
        if connection is None:
            return initial_bytes
        if not self._transport.slow_start_after_idle:
            return connection.window_bytes
        return tcp_throughput.idle_window_bytes(
            connection.window_bytes, at_s - connection.used_s, connection.rtt_s, initial_bytes
        )

    def used(self, key: Hashable, cost: Cost, end_s: float) -> None:
        """An operation has opened the windows, and ended then."""
        if len(self._connections) >= _MAX_CONNECTIONS:
            del self._connections[next(iter(self._connections))]
        self._connections[key] = _Connection(cost.window_bytes, cost.rtt_s, end_s)
