"""What an all-reduce by recursive halving and doubling takes (Thakur, Rabenseifner, Gropp 2005).

Letters as in `netsim.timeline.patterns`. P is the largest power of two up to n. The steps are those
of `bagua_algos.communication.halving_doubling`:

    1 if n > P    the n - P workers beyond hand over all B bytes to one of the P each
    log2 P        swaps of B/2, B/4, ... B/P bytes with workers P/2, P/4, ... 1 further
    log2 P        the same swaps, backwards
    1 if n > P    the n - P get the sums back
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from netsim.timeline.cost import Cost, Situation
from netsim.timeline.link_table import Array, Ranks
from netsim.timeline.tcp.windows import Window, after_idleness

_COUPLED = 4
"""As in a ring: a step of all is as late as that of about so many."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Step:
    """Messages of as many bytes each, from senders to receivers; `notes_late`: the receivers' word
    that they are ready is on the way while the step begins, and else long there. The two swaps with
    a peer are one and the same.
    """

    senders: Ranks
    receivers: Ranks
    num_bytes: float
    notes_late: bool = True

    @property
    def peer(self) -> int:
        """Of the first participant; it stands for all pairs that swap at the same time."""
        return int(max(self.senders[0], self.receivers[0]))


def all_reduce(situation: Situation, num_bytes: float) -> Cost:
    """All steps, one after the other, each as long as its slowest message.

        T = sum over the steps of message + 2 d, or d without a rendezvous

    The two swaps with a peer use one connection. The first opens its window, and what lies between
    the two may close it again where it takes longer than TCP's timeout for idleness. So may what
    lies between the second and the next all-reduce's first, which is long for peers that swap in
    the middle. `windows` are in the order of their first swaps. Over a link that is down it takes
    for ever, and they stay as they are.
    """
    transport, steps = situation.transport, _steps(situation.ranks, num_bytes)
    peers = list(dict.fromkeys(step.peer for step in steps))
    windows = situation.windows * (len(peers) if len(situation.windows) == 1 else 1)
    kept = dict(zip(peers, windows, strict=True))
    busy_s = {
        step: situation.busy_s(step.senders, step.receivers, step.num_bytes)
        for step in dict.fromkeys(steps)
    }
    known: dict[tuple[_Step, Window], tuple[float, float, Window]] = {}
    first_s: dict[int, float] = {}
    used_s: dict[int, float] = {}
    at_s, rtt_s, num_messages = transport.operation_s, 0.0, 0
    for step in steps:
        window = kept[step.peer]
        if step.peer in used_s and transport.slow_start_after_idle and at_s < math.inf:
            idle_s = at_s - used_s[step.peer] + transport.unused_s(rtt_s)
            window = after_idleness(window, idle_s, rtt_s, transport.initial_window_bytes)
        kept[step.peer] = window
        streams = transport.parts(step.num_bytes)
        first_s.setdefault(step.peer, at_s)
        if (step, window) not in known:
            alike = [
                other
                for other in busy_s
                if (len(other.senders), kept[other.peer]) == (len(step.senders), window)
                and transport.parts(other.num_bytes) == streams
            ]
            own = replace(situation, windows=(window,), streams=streams)
            taken = _taken(own, alike, [float(busy_s[other].max()) for other in alike])
            known |= {(other, window): one for other, one in zip(alike, taken, strict=True)}
        seconds, step_rtt_s, kept[step.peer] = known[step, window]
        at_s += seconds
        used_s[step.peer] = at_s
        rtt_s = max(rtt_s, step_rtt_s)
        num_messages += len(step.senders) * streams
    paths = situation.table.worst_path(situation.ranks)
    unused_s = [at_s - used_s[peer] + first_s[peer] for peer in peers] if at_s < math.inf else []
    return Cost(
        seconds=at_s,
        drain_s=float(situation.delay_s(paths, steps[-1].num_bytes)),
        busy_s=sum((busy_s[step] for step in steps), np.zeros(situation.table.num_links)),
        sent_bytes=_sent(situation.table.world_size, steps),
        rtt_s=rtt_s,
        windows=tuple(kept.values()) if at_s < math.inf else windows,
        idle_s=tuple(unused_s),
        num_messages=num_messages,
    )


def _steps(ranks: Ranks, num_bytes: float) -> Sequence[_Step]:
    power = 1 << (len(ranks).bit_length() - 1)
    inner, beyond = ranks[:power], ranks[power:]
    partners = inner[: len(beyond)]
    swaps = []
    distance = power // 2
    while distance:
        peers = inner[np.arange(power) ^ distance]
        swaps.append(_Step(senders=inner, receivers=peers, num_bytes=num_bytes * distance / power))
        distance //= 2
    steps = [*swaps, *reversed(swaps)]
    if len(beyond):
        there = _Step(senders=beyond, receivers=partners, num_bytes=num_bytes)
        back = _Step(senders=partners, receivers=beyond, num_bytes=num_bytes, notes_late=False)
        steps = [there, *steps, back]
    return steps


def _sent(world_size: int, steps: Sequence[_Step]) -> Array:
    """Bytes that each worker sends, `[N]`."""
    sent = np.zeros(world_size)
    for step in steps:
        np.add.at(sent, step.senders, step.num_bytes)
    return sent


def _taken(
    situation: Situation, steps: Sequence[_Step], busy_s: Sequence[float]
) -> list[tuple[float, float, Window]]:
    """What each of some steps takes that have equally many messages over connections of equal
    windows, and occupy a link for `busy_s` at most; its round trip, and the window afterwards.
    """
    senders = np.stack([step.senders for step in steps])
    receivers = np.stack([step.receivers for step in steps])
    num_bytes = np.array([[step.num_bytes] for step in steps])
    path = situation.table.paths(senders, receivers)
    delay_s = situation.delay_s(path, num_bytes)
    note_s = situation.note_s(situation.table.paths(receivers, senders))
    rtt_s = delay_s + note_s
    num_parts = min(senders.shape[1], _COUPLED) * situation.streams
    rate = situation.rate(path, rtt_s)
    moving_s = np.maximum(
        situation.message_s(path, num_bytes, rtt_s, 1, num_parts),
        np.array(busy_s)[:, None],
    )
    notes_late = np.array([[step.notes_late] for step in steps])
    begin_s = note_s * (situation.transport.rendezvous & notes_late)
    late_s = situation.cold_s(path, num_bytes, rate, rtt_s) + situation.recovery_s(
        path, num_bytes, rate, rtt_s, num_parts
    )
    seconds = begin_s + moving_s + delay_s + late_s
    return [
        (
            float(seconds[i].max()),
            float(rtt_s[i].max()),
            situation.opened(path.rate[i], step.num_bytes, rate[i], rtt_s[i])[0],
        )
        for i, step in enumerate(steps)
    ]
