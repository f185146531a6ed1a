"""Which parts of a model are in training mode. It need not be all of them or none: a script
may have frozen a BatchNorm by `eval()`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Within, `model` is in evaluation mode; afterwards each of its parts is in its own again."""
    before = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, is_training in before:
            part.training = is_training


def modes_of(model: nn.Module) -> list[bool]:
    """Whether each part of `model` is in training mode."""
    return [part.training for part in model.modules()]


def set_modes(model: nn.Module, modes: Sequence[bool]) -> None:
    """Put each part of `model` into the mode that the same part of another one is in."""
    for part, is_training in zip(model.modules(), modes, strict=True):
        part.training = is_training
