"""What settings must be, where Python would take anything: whole numbers, numbers, true or false,
and objects of some kind.
"""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from inspect import isroutine
from numbers import Integral, Real

_PARTS = {
    "compressor": ("MinMaxUInt8()", ("wire_bytes", "compress", "decompress")),
    "topology": ("Ring()", ("mixing",)),
    "outer": ("Nesterov()", ("step_",)),
}
"""Fields of algorithms that are objects: an example, and the methods that they have."""


def check_whole(name: str, value: object, *, least: int, most: int | None = None) -> None:
    """Raise `ValueError` unless the `value` of `name` is a whole number from `least` to `most`."""
    if (
        not isinstance(value, Integral)
        or isinstance(value, bool)
        or value < least
        or (most is not None and not value <= most)
    ):
        bounds = f"of at least {least}" if most is None else f"in {least}..{most}"
        raise ValueError(f"{name} must be a whole number {bounds}, got {value}")


def check_number(name: str, value: object) -> None:
    """Raise `ValueError` unless the `value` of `name` is a number; NaN is none, infinity is one."""
    if not isinstance(value, Real) or isinstance(value, bool) or value != value:
        raise ValueError(f"{name} must be a number, got {value!r}")


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


def check_object(name: str, value: object, like: str, methods: Iterable[str]) -> None:
    """Raise `ValueError` unless `value` is an object with `methods`, as `like` is, and no class."""
    has_all = all(callable(getattr(value, method, None)) for method in methods)
    if isinstance(value, type) or not has_all:
        raise ValueError(f"{name} must be an object such as {like}, got {shown(value)}")


def check_parts(algorithm: object) -> None:
    """Raise `ValueError` for a compressor, topology or outer optimizer among the fields of a
    dataclass that is given as its class or its name. None may be left where it is the default.
    """
    for own in fields(algorithm) if is_dataclass(algorithm) else ():
        value = getattr(algorithm, own.name)
        if own.name in _PARTS and not (value is None and own.default is None):
            check_object(own.name, value, *_PARTS[own.name])


def shown(value: object) -> str:
    """What was given, for a sentence; of a class or a function, also what to do."""
    if isinstance(value, type):
        return f"the class {value.__name__}: call it"
    return f"the function {value.__name__}: call it" if isroutine(value) else repr(value)
