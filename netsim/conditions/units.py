"""Two units of one rate: links have 10^6 bits per second, data move in bytes per second."""

_BYTES_PER_MBIT = 125_000


def bytes_per_s(rate_mbit: float) -> float:
    """A rate of 10^6 bits per second, in bytes per second."""
    return _BYTES_PER_MBIT * rate_mbit


def mbit_per_s(rate_bytes_per_s: float) -> float:
    """A rate in bytes per second, in 10^6 bits per second."""
    return rate_bytes_per_s / _BYTES_PER_MBIT
