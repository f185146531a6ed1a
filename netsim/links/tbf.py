"""A rate alone as the kernel's token bucket, `tbf`."""

from netsim.conditions.link import LinkCondition
from netsim.conditions.units import bytes_per_s

KIND = "tbf"
ESCAPE = "load the module sch_tbf, or set rate_mbit to null"

MAX_RATE_MBIT = 34_000
_U32_MAX = 2**32 - 1


def rate_bytes_per_s(link: LinkCondition) -> int:
    """The rate as the kernel takes it; 0 if unshaped."""
    return round(bytes_per_s(link.rate_mbit or 0))


def queue_bytes(link: LinkCondition) -> int:
    """The queue's length in bytes; without a rate, at `MAX_RATE_MBIT`."""
    return round(bytes_per_s(link.rate_mbit or MAX_RATE_MBIT) * link.queue_ms / 1000)


def qdisc(link: LinkCondition) -> dict:
    """Arguments of `IPRoute.tc("add", ...)` for the link; empty for an ideal one.

    A queue that `check` refuses is cut to what the kernel's 32 bits hold.
    """
    assert not link.needs_more_than_rate, link
    if link.rate_mbit is None:
        return {}
    burst = link.burst_bytes
    return {
        "kind": KIND,
        "rate": rate_bytes_per_s(link),
        "burst": burst,
        # The kernel counts the burst as part of the queue.
        "limit": min(burst + queue_bytes(link), _U32_MAX),
    }


def check(link: LinkCondition) -> None:
    """Refuse what the kernel's 32 bits cannot hold.

    Raises:
        ValueError: with the value and its limit.
    """
    if link.rate_mbit is None:
        return
    if link.rate_mbit > MAX_RATE_MBIT:
        raise ValueError(
            f"rate_mbit={link.rate_mbit} is over {MAX_RATE_MBIT} and the kernel holds a rate "
            f"in 32 bits of bytes per second: choose less, or simulate this network."
        )
    if link.burst_bytes + queue_bytes(link) > _U32_MAX:
        raise ValueError(
            f"queue_ms={link.queue_ms} at rate_mbit={link.rate_mbit} is {queue_bytes(link)} "
            f"bytes and the kernel holds a queue's length in 32 bits: choose less."
        )
