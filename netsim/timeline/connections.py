"""The congestion windows of the connections between workers, kept from one operation to the next.

One window stands for all connections that an operation uses at the same time; an operation that
uses several kinds of them one after the other has a window for each.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from netsim.timeline.cost import Cost
from netsim.timeline.tcp.windows import Window, Windows, after_idleness
from netsim.timeline.transport import Transport

_MAX_CONNECTIONS = 1024


@dataclass(slots=True)
class _Connection:
    windows: Windows
    idle_s: tuple[float, ...]
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

    def windows(self, key: Hashable, at_s: float) -> Windows:
        """The windows of an operation that begins then, at their first use; the initial one where
        there has been no traffic yet.
        """
        transport, connection = self._transport, self._connections.get(key)
        if connection is None:
            return (Window(transport.initial_window_bytes),)
        if not transport.slow_start_after_idle:
            return connection.windows
        pause_s = at_s - connection.used_s + transport.unused_s(connection.rtt_s)
        initial_bytes = transport.initial_window_bytes
        idle_s = connection.idle_s or (0.0,) * len(connection.windows)
        return tuple(
            after_idleness(window, pause_s + unused_s, connection.rtt_s, initial_bytes)
            for window, unused_s in zip(connection.windows, idle_s, strict=True)
        )

    def used(self, key: Hashable, cost: Cost, end_s: float) -> None:
        """An operation has opened the windows, and ended then. Windows in whole segments come to
        rest where operations repeat themselves, so that costs that are known serve again.
        """
        if len(self._connections) >= _MAX_CONNECTIONS:
            del self._connections[next(iter(self._connections))]
        windows = tuple(window.in_segments(self._transport.mss_bytes) for window in cost.windows)
        self._connections[key] = _Connection(windows, cost.idle_s, cost.rtt_s, end_s)
