"""Rate, delay, jitter and loss as the kernel's `netem`."""

from math import ceil

from netsim.conditions.link import MTU, LinkCondition, frame_bytes
from netsim.conditions.units import bytes_per_s
from netsim.links import tbf

KIND = "netem"
ESCAPE = "load the module sch_netem, or leave backend at null for a switch in user space"


def qdisc(link: LinkCondition, mtu: int = MTU) -> dict:
    """Arguments of `IPRoute.tc("add", ...)` for the link; empty for an ideal one."""
    if link.is_ideal:
        return {}
    arguments = {
        "kind": KIND,
        "delay": round(1000 * link.delay_ms),  # microseconds
        "jitter": round(1000 * link.jitter_ms),
        "loss": link.loss_pct,
        "limit": _limit_packets(link, mtu),
    }
    if link.rate_mbit is not None:
        arguments["rate"] = tbf.rate_bytes_per_s(link)
    elif link.jitter_ms:
        # Only with a rate does netem keep packets in order whatever their delays.
        arguments["rate"] = round(bytes_per_s(tbf.MAX_RATE_MBIT))
    return arguments


def check(link: LinkCondition) -> None:
    """Refuse what the kernel's 32 bits cannot hold.

    Raises:
        ValueError: with the value and its limit.
    """
    tbf.check(link)


def _limit_packets(link: LinkCondition, mtu: int) -> int:
    """The queue in packets. Netem holds a packet during its delay too: that comes on top.

    A GSO packet counts as one though it may be 45 frames, so that the queue may last longer than
    `queue_ms` before it drops; never where loss is asked for, since packets are single frames then.
    """
    rate = bytes_per_s(link.rate_mbit or tbf.MAX_RATE_MBIT)
    in_flight_bytes = rate * (link.delay_ms + link.jitter_ms) / 1000
    return ceil((tbf.queue_bytes(link) + in_flight_bytes) / frame_bytes(mtu)) + 1
