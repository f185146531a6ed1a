"""What algorithms keep, in checkpoints: `torch.load(weights_only=True)` makes no other class."""

from typing import TypeVar

from torch.serialization import add_safe_globals

State = TypeVar("State")


def kept(cls: type[State]) -> type[State]:
    """A class of an algorithm's state, which holds tensors, numbers and such classes alone.

    `torch.load` makes objects of it without being told to trust the file, once `bagua_algos` is
    imported.
    """
    add_safe_globals([cls])
    return cls
