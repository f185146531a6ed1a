"""The cost of an operation, and its inputs: links, ranks, connections."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from netsim.timeline.link_table import (
    Array,
    LinkTable,
    Paths,
    Ranks,
)
from netsim.timeline.tcp import short_queues, throughput, windows
from netsim.timeline.tcp.windows import Window, Windows
from netsim.timeline.transport import SWITCH_BULK_BYTES, Transport


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one operation takes on idle links.

    Args:
        seconds: from its start to its end; of an exchange `[n]`, by receiver.
        drain_s: what of it is left when the last byte has left a link; of an exchange `[n]`.
        busy_s: for how long its bytes occupy each link, `[links]`.
        sent_bytes: payload that each worker sends, `[N]`.
        notice_s: of an exchange, what word of a receiver's being ready takes to its sender, `[n]`.
        handover_s: of an exchange, from when a message may leave until its sender is done, `[n]`.
        rtt_s: of its longest path.
        windows: of its connections afterwards.
        idle_s: for how long, of an operation and the next one like it, each of these connections is
            not used; (): all are from the start to the end.
        num_messages: that all workers send together.
        num_in_turn: how many of them the switch carries before the operation ends, if it carries
            one after the other; None: all.
        host_s: for how long a host that all workers share is busy with it.
    """

    seconds: float | Array
    drain_s: float | Array
    busy_s: Array
    sent_bytes: Array
    notice_s: float | Array = 0.0
    handover_s: float | Array = 0.0
    rtt_s: float = 0.0
    windows: Windows = ()
    idle_s: tuple[float, ...] = ()
    num_messages: float = 0.0
    num_in_turn: float | None = None
    host_s: float = 0.0

    @cached_property
    def links(self) -> Ranks:
        """The links that it occupies."""
        return np.flatnonzero(self.busy_s)


@dataclass(frozen=True, kw_only=True)
class Situation:
    """The inputs of a cost: the links, the participants' ranks in order, the connections.

    `windows` are the congestion windows that the connections have at the start, `streams` is how
    many connections each message is striped over, and `nap_s` is what the switch adds to the delays
    of large messages.
    """

    table: LinkTable
    ranks: Ranks
    transport: Transport
    congestion_control: str | None
    windows: Windows
    streams: int
    nap_s: float

    @property
    def window(self) -> Window:
        """Of each connection, where all of them have equal ones."""
        [window] = self.windows
        return window

    def delay_s(self, paths: Paths, num_bytes: float | Array) -> Array:
        """One way, for the last packet of a message: packets never overtake, so of n draws of
        jitter the largest counts, on average (n - 1) / (n + 1) of the most.
        """
        num_packets = np.maximum(np.ceil(num_bytes / self.transport.mss_bytes), 1)
        late_s = paths.jitter_s * (num_packets - 1) / (num_packets + 1)
        naps_s = self.nap_s * (num_bytes > SWITCH_BULK_BYTES)
        return paths.delay_s + late_s + self.transport.message_s + naps_s

    def note_s(self, paths: Paths) -> Array:
        """One way, for a receiver's word that it is ready: a packet."""
        return self.delay_s(paths, 1)

    def rate(self, paths: Paths, rtt_s: Array, num_flows: int = 1, num_senders: int = 1) -> Array:
        """Bytes per second of `num_flows` messages together: the slowest link's rate, or less under
        loss, where windows are full, or where a queue is short.
        """
        rate = throughput.loss_limited_rate(
            self.congestion_control,
            paths.rate,
            rtt_s,
            paths.loss,
            num_flows * self.streams,
            self.transport.max_window_bytes,
            self.transport.mss_bytes,
        )
        queued = short_queues.limited_rate(
            self.congestion_control,
            paths.rate,
            rtt_s,
            paths.queue_bytes,
            paths.burst_bytes,
            paths.excess,
            num_senders,
            self.transport.mss_bytes,
        )
        return np.minimum(rate, queued)

    def message_s(
        self,
        paths: Paths,
        num_bytes: float | Array,
        rtt_s: Array,
        num_flows: int,
        num_parts: int,
        num_senders: int = 1,
    ) -> Array:
        """Seconds until the slowest of `num_parts` messages or parts of messages has left;
        `num_flows` messages share a link, and come from `num_senders` hosts to one.
        """
        windows_s = short_queues.message_s(
            self.congestion_control,
            num_bytes / self.streams,
            paths.rate,
            rtt_s,
            paths.queue_bytes,
            paths.burst_bytes,
            paths.excess,
            num_flows * self.streams,
            num_parts,
            num_senders,
            self.transport.mss_bytes,
        )
        seconds = throughput.message_s(
            self.congestion_control,
            num_bytes / self.streams,
            paths.rate,
            rtt_s,
            paths.loss,
            num_flows * self.streams,
            num_parts,
            self.transport.max_window_bytes,
            self.transport.mss_bytes,
        )
        return np.maximum(seconds, windows_s)

    def cold_s(
        self, paths: Paths, num_bytes: float | Array, rate: Array, rtt_s: Array, num_flows: int = 1
    ) -> Array:
        """Seconds for which links idle while the windows of messages open; `rate` is of one, and
        `num_flows` of them share a link.
        """
        return windows.opening_wait_s(
            self.congestion_control,
            num_bytes / self.streams,
            self.window,
            rate / self.streams,
            paths.rate / (num_flows * self.streams),
            rtt_s,
        )

    def posting_s(self, num_messages: int) -> float:
        """From the first of a worker's simultaneous messages to the last."""
        return (num_messages * self.streams - 1) / self.transport.messages_per_s

    def recovery_s(
        self,
        paths: Paths,
        num_bytes: float | Array,
        rate: Array,
        rtt_s: Array,
        num_parts: int,
        power: int = 1,
        *,
        notes_lead: bool = False,
    ) -> Array:
        """Seconds that simultaneous parts of messages wait for lost packets and lost ready notices;
        `power` 2: their squares on the mean. With `notes_lead` each notice goes ahead of data to
        the same worker, which tells of its loss: it is one more packet of these.
        """
        note_bytes = self.transport.mss_bytes * self.transport.rendezvous * notes_lead
        return throughput.recovery_wait_s(
            num_bytes / self.streams + note_bytes,
            rate / self.streams * rtt_s + note_bytes,
            rtt_s,
            paths.loss,
            num_parts,
            num_parts * self.transport.rendezvous * (not notes_lead),
            self.transport.mss_bytes,
            power,
        )

    def opened(
        self, link_rate: Array, num_bytes: float, rate: Array, rtt_s: Array, num_flows: int = 1
    ) -> Windows:
        """The windows after messages of `num_bytes` each over paths of `link_rate`; the other
        arguments as for `cold_s`.
        """
        window = windows.opened(
            self.congestion_control,
            num_bytes / self.streams,
            self.window,
            float(np.max(rate)) / self.streams,
            float(np.max(link_rate)) / (num_flows * self.streams),
            float(np.max(rtt_s)),
        )
        return (window,)

    def sent(self, num_bytes: float | Array) -> Array:
        """`[N]`, by worker."""
        sent = np.zeros(self.table.world_size)
        sent[self.ranks] = num_bytes
        return sent

    def busy_s(self, senders: Ranks, receivers: Ranks, num_bytes: float) -> Array:
        """`[links]`: each sender sends as much to its receiver."""
        return self.table.num_flows(senders, receivers) * num_bytes / self.table.rates


def transfer_s(num_bytes: float, rate: Array) -> Array:
    """Of a message; inf over a link that is down, unless there is nothing to send."""
    if not num_bytes:
        return np.zeros_like(rate)
    with np.errstate(divide="ignore"):
        return np.asarray(num_bytes / rate)
