"""What a worker's link to the network is like."""

import math
from dataclasses import dataclass, fields

FRAME_BYTES = 1514
"""One full Ethernet frame: an MTU of 1500 bytes and the header."""

MIN_RATE_MBIT = 1
MAX_RATE_MBIT = 34_000
MAX_DELAY_MS = 270_000
_U32_MAX = 2**32 - 1


@dataclass(frozen=True, kw_only=True)
class NetworkCondition:
    """One worker's link, the same in both directions.

    `queue_ms` is how long the queue in front of the link takes to drain; what finds it full is
    dropped. The default holds the 4 MB that a Linux TCP sender may have in flight (`tcp_wmem`)
    at 100 Mbit/s, so that one flow never loses a packet to the queue: with 100 ms, some
    all-reduces took half as long again for CUBIC's recovery. Lower it to study congestion.

    Args:
        rate_mbit: 10^6 bits per second, Ethernet headers included; None leaves the link unshaped.
        delay_ms: added to each packet, one way.
        jitter_ms: each packet's delay is drawn from `delay_ms` plus or minus this.
        loss_pct: packets lost at random, in per cent.
        queue_ms: length of the queue in time at the rate; without a rate, at `MAX_RATE_MBIT`.

    Raises:
        ValueError: for a value that no link can have, or that the kernel cannot express.
    """

    rate_mbit: float | None = None
    delay_ms: float = 0
    jitter_ms: float = 0
    loss_pct: float = 0
    queue_ms: float = 400

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name != "rate_mbit" or self.rate_mbit is not None:
                self._check_number(field.name)
        self._check_rate()
        self._check_delay()
        if self.loss_pct > 100:
            raise ValueError(f"loss_pct is a percentage: choose 0 to 100, not {self.loss_pct}.")
        if self.rate_mbit is not None and self.burst_bytes + self.queue_bytes > _U32_MAX:
            raise ValueError(
                f"queue_ms={self.queue_ms} at rate_mbit={self.rate_mbit} is {self.queue_bytes} "
                f"bytes and the kernel holds a queue's length in 32 bits: choose less."
            )

    def _check_number(self, name: str) -> None:
        value = getattr(self, name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not 0 <= value < math.inf:  # NaN fails every comparison
            raise ValueError(f"{name} has to be a finite number from 0 up, not {value!r}.")

    def _check_rate(self) -> None:
        if self.rate_mbit is None:
            return
        if self.rate_mbit < MIN_RATE_MBIT:
            raise ValueError(
                f"rate_mbit={self.rate_mbit} is under {MIN_RATE_MBIT}, where a single burst lasts "
                f"for more than half a second: choose more, or null for an unshaped link."
            )
        if self.rate_mbit > MAX_RATE_MBIT:
            raise ValueError(
                f"rate_mbit={self.rate_mbit} is over {MAX_RATE_MBIT} and the kernel holds a rate "
                f"in 32 bits of bytes per second: choose less, or null for an unshaped link."
            )

    def _check_delay(self) -> None:
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

    @property
    def needs_netem(self) -> bool:
        """Whether it asks for more than a rate, which only the netem discipline can do."""
        return bool(self.delay_ms or self.jitter_ms or self.loss_pct)

    @property
    def rate_bytes_per_s(self) -> int | None:
        """The rate as the kernel takes it; None if unshaped."""
        return None if self.rate_mbit is None else round(self.rate_mbit * 1e6 / 8)

    @property
    def burst_bytes(self) -> int:
        """What may pass at once at full speed: 4 ms at the rate, and 70 kB or more.

        One 64 KB GSO packet has to fit, and a bucket smaller than one frame drops everything
        without an error.
        """
        return max(70_000, round(0.004 * (self.rate_bytes_per_s or 0)))

    @property
    def queue_bytes(self) -> int:
        """The queue's length in bytes."""
        return round((self.rate_mbit or MAX_RATE_MBIT) * 1e3 / 8 * self.queue_ms)
