"""What must be a whole number, as a number of steps must."""

from numbers import Integral


def check_whole(name: str, value: object, *, least: int) -> None:
    """Raise `ValueError` unless the `value` of `name` is a whole number of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value}")
