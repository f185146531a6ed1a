"""What algorithms keep, in checkpoints: `torch.load(weights_only=True)` makes no other class."""

import os
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.serialization import add_safe_globals, get_crc32_options, get_safe_globals

State = TypeVar("State")
ALGORITHM = "algorithm"
NUM_WORKERS = "number of workers"
OPTIONS = "set of options that decide what is kept"

_DECIDE = ("error_feedback", "momentum", "outer")

_PLAIN = (Tensor, torch.dtype, torch.device, torch.Size, OrderedDict, Counter)
"""What `torch.load` knows, beside built-in types."""


def kept(cls: type[State]) -> type[State]:
    """A class of an algorithm's state, which holds tensors, numbers and such classes alone.

    `torch.load` makes objects of it without being told to trust the file, once `bagua_algos` is
    imported.
    """
    add_safe_globals([cls])
    return cls


def checked(state: Any) -> Any:
    """An algorithm's state as it is. Raises `ValueError` where it has an object of a class without
    `kept`: a checkpoint could hold it, and nobody load it.
    """
    cls = type(state)
    is_plain = cls.__module__ == "builtins" or isinstance(state, _PLAIN)
    if not is_plain and cls not in get_safe_globals():
        raise ValueError(
            f"{cls.__name__} is part of an algorithm's state, and no checkpoint with it could "
            "be loaded: decorate the class with @bagua_algos.checkpoint.kept, and let it have "
            "tensors, numbers and such classes alone"
        )
    for part in _parts(state):
        checked(part)
    return state


def check_whole(file: str | os.PathLike[str]) -> None:
    """Raise `ValueError` where a file of `torch.save` is torn, or a part of it has not the checksum
    that it was written with, at which `torch.load` does not look; `OSError` where it cannot be
    read. Of 1 GB this takes 0.5 s, and loading 0.6 to 0.8 s. Where torch is told to write no
    checksums, none are looked at.
    """
    with open(file, "rb") as content:
        try:
            with zipfile.ZipFile(content) as parts:
                damaged = parts.testzip() if get_crc32_options() else None
        except Exception as error:  # whatever is made of numbers that are damaged
            raise ValueError(f"{file} is torn: {error}") from error
    if damaged is not None:
        raise ValueError(f"{damaged} in {file} has another checksum than it was written with")


def check_belongs(
    state_dict: Mapping[str, Any], here: Mapping[str, Any], *, workers_agree: bool
) -> None:
    """Raise `ValueError` where a state is not of what `here` says: algorithm, layout, workers; but
    a portable one belongs to any workers of the algorithm. Older ones do not know their options.
    """
    portable = is_portable(state_dict["state"], workers_agree=workers_agree)
    of = {OPTIONS: here.get(OPTIONS), **state_dict["of"]}
    for what, own in here.items():
        saved = of.get(what)
        if saved != own and not (portable and what not in (ALGORITHM, OPTIONS)):
            raise ValueError(
                f"this state is of another {what}: {saved}, and here it is {own}; continue "
                "with the same one, or begin anew without this state"
            )


def options_of_state(algorithm: object) -> list[str]:
    """The options of an algorithm that are on and have it keep something: a state without that
    would leave them off, and nobody would notice.
    """
    return [name for name in _DECIDE if getattr(algorithm, name, None)]


def tensors_in(state: Any) -> Iterator[Tensor]:
    """All tensors in an algorithm's state, or in what holds it."""
    if isinstance(state, Tensor):
        yield state
    for part in _parts(state):
        yield from tensors_in(part)


def _parts(state: Any) -> Iterable[Any]:
    if isinstance(state, Tensor):
        return ()
    if isinstance(state, Mapping):
        return state.values()
    if isinstance(state, list | tuple | set | frozenset):
        return state
    cls: Any = type(state)
    fields = cls.__getstate__(state)  # as pickle: `__dict__`, slots, or what it says itself
    return () if fields is None else (fields,)


def is_portable(state: Any, *, workers_agree: bool) -> bool:
    """Whether any number of workers can go on with this state: all models are one, and it has no
    tensors, which are laid out for the workers that made it.
    """
    return workers_agree and next(tensors_in(state), None) is None
