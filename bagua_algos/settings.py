"""What settings must be, where Python would take anything: whole numbers, and true or false."""

from dataclasses import fields, is_dataclass
from numbers import Integral


def check_whole(name: str, value: object, *, least: int) -> None:
    """Raise `ValueError` unless the `value` of `name` is a whole number of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value}")


def check_flag(name: str, value: object) -> None:
    """Raise `ValueError` unless the `value` of `name` is True or False, or equal to one of them, or
    None, which counts as false. A text such as "no", as a command line has it, would count as true.
    """
    if isinstance(value, str) or value not in (True, False, None):
        raise ValueError(f"{name} must be True or False, got {value!r}")


def check_flags(settings: object) -> None:
    """Raise `ValueError` for a field of a dataclass that is annotated `bool` and is no flag."""
    for own in fields(settings) if is_dataclass(settings) else ():
        if own.type in (bool, "bool"):
            check_flag(own.name, getattr(settings, own.name))
