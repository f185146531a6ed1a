"""What one direction of one link is like."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from netsim.conditions.units import bytes_per_s

MTU = 1500
"""Bytes of an IP packet that fit into a frame, by default."""
_ETHERNET_BYTES, _TCP_BYTES = 14, 52
"""The headers of a frame; those of IPv4 and of TCP with timestamps."""

MIN_RATE_MBIT, MAX_RATE_MBIT = 1, 1e12
MAX_DELAY_MS = 270_000


@dataclass(frozen=True, kw_only=True)
class LinkCondition:
    """One direction of a link.

    Args:
        rate_mbit: 10^6 bits per second, Ethernet headers included; None leaves it unshaped.
        delay_ms: added to each packet.
        jitter_ms: each packet's delay is drawn from `delay_ms` plus or minus this, evenly; a
            packet never overtakes the one before it.
        loss_pct: packets lost at random, in per cent; 100 is a link that is down.
        queue_ms: what the queue before the link holds, in time at the rate; what finds more than
            that before it is dropped. Without a rate there is no queue.

    Raises:
        ValueError: for a value that no link can have.
    """

    rate_mbit: float | None = None
    delay_ms: float = 0
    jitter_ms: float = 0
    loss_pct: float = 0
    queue_ms: float = 400

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name != "rate_mbit" or self.rate_mbit is not None:
                check_number(field.name, getattr(self, field.name))
        if self.rate_mbit is not None and self.rate_mbit < MIN_RATE_MBIT:
            raise ValueError(
                f"rate_mbit={self.rate_mbit} is under {MIN_RATE_MBIT}, where a single burst lasts "
                f"for more than half a second: choose more, or null for an unshaped link."
            )
        if self.rate_mbit is not None and self.rate_mbit > MAX_RATE_MBIT:
            raise ValueError(
                f"rate_mbit={self.rate_mbit} is over {MAX_RATE_MBIT:g}, which no link has: "
                f"choose less, or null for an unshaped link."
            )
        if self.delay_ms > MAX_DELAY_MS:
            raise ValueError(
                f"delay_ms={self.delay_ms} is over {MAX_DELAY_MS} and the kernel holds a delay "
                f"in 32 bits of 64 ns: choose less."
            )
        if self.jitter_ms > self.delay_ms:
            raise ValueError(
                f"jitter_ms={self.jitter_ms} exceeds delay_ms={self.delay_ms} and no packet "
                f"arrives before it was sent: choose a jitter_ms of at most delay_ms."
            )
        if self.loss_pct > 100:
            raise ValueError(f"loss_pct is a percentage: choose 0 to 100, not {self.loss_pct}.")

    @property
    def is_ideal(self) -> bool:
        """Whether nothing shapes it."""
        return self.rate_mbit is None and not self.needs_more_than_rate

    @property
    def needs_more_than_rate(self) -> bool:
        """Whether a token bucket is not enough."""
        return bool(self.delay_ms or self.jitter_ms or self.loss_pct)

    @property
    def seconds_per_byte(self) -> float:
        """What a byte takes to leave; 0 for an unshaped link."""
        return 0.0 if self.rate_mbit is None else 1 / bytes_per_s(self.rate_mbit)

    @property
    def queue_bytes(self) -> float:
        """What its queue holds; inf for an unshaped link, which has none."""
        if self.rate_mbit is None:
            return math.inf
        return bytes_per_s(self.rate_mbit) * self.queue_ms / 1000

    @property
    def burst_bytes(self) -> int:
        """What a token bucket before it lets pass at once: 4 ms at the rate, and 70 kB or more.

        One 64 KB GSO packet has to fit, and a bucket smaller than one frame drops everything
        without an error.
        """
        return max(70_000, round(0.004 * bytes_per_s(self.rate_mbit or 0)))


def frame_bytes(mtu: int = MTU) -> int:
    """A full Ethernet frame."""
    return mtu + _ETHERNET_BYTES


def segment_bytes(mtu: int = MTU) -> int:
    """What a full frame carries of TCP's data."""
    return mtu - _TCP_BYTES


def wire_per_payload(mtu: int = MTU) -> float:
    """Bytes on a link for a byte of TCP's data, in full frames."""
    return frame_bytes(mtu) / segment_bytes(mtu)


LINK_FIELDS = tuple(field.name for field in fields(LinkCondition))
ONCE_FIELDS = ("delay_ms", "jitter_ms", "loss_pct")
"""What belongs to a whole path and is applied once, where a packet leaves its sender."""


def in_series(links: list[LinkCondition]) -> LinkCondition:
    """What the links make of a packet that crosses them all, one after the other."""
    rates = [link.rate_mbit for link in links if link.rate_mbit is not None]
    survival = math.prod(1 - link.loss_pct / 100 for link in links)
    return LinkCondition(
        rate_mbit=min(rates, default=None),
        delay_ms=sum(link.delay_ms for link in links),
        jitter_ms=sum(link.jitter_ms for link in links),
        loss_pct=100 * (1 - survival),
        queue_ms=min(link.queue_ms for link in links),
    )


def check_number(name: str, value: Any) -> None:
    """Refuse anything but a finite number of at least 0.

    Raises:
        ValueError: with the name and the value.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:  # NaN fails every comparison
        raise ValueError(f"{name} has to be a finite number from 0 up, not {value!r}.")


def check_keys(where: str, values: object, allowed: tuple[str, ...]) -> Mapping[str, Any]:
    """`values` as a mapping whose keys are all among the allowed ones.

    Raises:
        ValueError: with the key that is not, or if it is no mapping.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} has to be a mapping of {', '.join(allowed)}, not {values!r}.")
    for key in values:
        if key not in allowed:
            raise ValueError(f"{where} has no key {key!r}: choose from {', '.join(allowed)}.")
    return values
