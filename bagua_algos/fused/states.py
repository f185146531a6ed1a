"""What an optimizer keeps of the parameters of a strip, as one value for all of them.

    elements    a tensor of the parameter's shape: parts of one flat tensor
    numbers     a tensor without dimensions, such as Adam's count of steps: elements of one vector
    constants   a value of Python: the same for all

Each parameter's own state has the same memory, so code that reads or changes it there reads and
changes these.
"""

import operator
from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from bagua_algos.fused.layouts import Layout

State = dict[str, Any]
"""What an optimizer keeps of one parameter, by name."""


class Shared(Protocol):
    """One name in the states of all parameters of a strip."""

    value: Any
    """What the optimizer finds under the name for the whole strip."""

    def is_current(self, states: Sequence[State]) -> bool:
        """Whether the parameters' own states still have the same under the name."""
        ...

    def take(self, value: Any, states: Sequence[State]) -> bool:
        """The optimizer has `value` for the strip now: hand it on to the parameters' own states.
        False where it has to be put together anew, as `shared` does.
        """
        ...

    def give(self, states: Sequence[State]) -> None:
        """Put this memory into the parameters' own states."""
        ...


class Elements:
    """Parts of one flat tensor [n]."""

    def __init__(self, name: str, value: Tensor, layout: Layout) -> None:
        self._name, self.value = name, value
        self._views = layout.parts(value)

    def is_current(self, states: Sequence[State]) -> bool:
        """Whether each state has the part that was made for it."""
        return _have(states, self._name, self._views)

    def take(self, value: Any, states: Sequence[State]) -> bool:
        """The same tensor as before; of another one, there are other parts."""
        return value is self.value

    def give(self, states: Sequence[State]) -> None:
        """Put the parts into the parameters' own states."""
        for state, view in zip(states, self._views, strict=True):
            state[self._name] = view


class Numbers:
    """Elements of one vector, all equal to a tensor without dimensions."""

    def __init__(self, name: str, value: Tensor, count: int) -> None:
        self._name = name
        self.value = value
        self._vector = value.detach().expand(count).clone()
        self._views = list(self._vector.unbind())
        self._version = self._vector._version

    def is_current(self, states: Sequence[State]) -> bool:
        """Whether each state has the element that was made for it, and nobody has changed any."""
        return self._vector._version == self._version and _have(states, self._name, self._views)

    def take(self, value: Any, states: Sequence[State]) -> bool:
        """The number `value` for all."""
        of = self._vector.dtype, self._vector.device
        if not _is_number(value) or (value.dtype, value.device) != of:
            return False
        self.value = value
        self._vector.copy_(value)
        self._version = self._vector._version
        return True

    def give(self, states: Sequence[State]) -> None:
        """Put the elements into the parameters' own states."""
        for state, view in zip(states, self._views, strict=True):
            state[self._name] = view


class Constants:
    """The same value of Python for all."""

    def __init__(self, name: str, value: Any) -> None:
        self._name, self.value = name, value

    def is_current(self, states: Sequence[State]) -> bool:
        """Whether each state has it."""
        missing = object()
        return all(state.get(self._name, missing) == self.value for state in states)

    def take(self, value: Any, states: Sequence[State]) -> bool:
        """The constant `value` for all."""
        if isinstance(value, Tensor):
            return False
        self.value = value
        self.give(states)
        return True

    def give(self, states: Sequence[State]) -> None:
        """Put it into the parameters' own states."""
        for state in states:
            state[self._name] = self.value


def shared(name: str, value: Any, layout: Layout) -> Shared:
    """What the optimizer has made for a strip. Raises `ValueError` for what is none of them."""
    if _is_flat(value, layout):
        return Elements(name, value, layout)
    if _is_number(value):
        return Numbers(name, value, layout.count)
    if isinstance(value, Tensor):
        raise ValueError(
            f"the optimizer keeps a tensor {name!r} of shape {tuple(value.shape)} for "
            f"{len(layout.weights)} elements, so it does not treat every "
            "element by itself: do not fuse it"
        )
    return Constants(name, value)


def kind(value: Any, shape: torch.Size) -> Hashable | None:
    """What must be equal in neighbours' states; None where nothing fits. For parameters with at
    least one dimension.
    """
    if not isinstance(value, Tensor):
        return ("constant", value) if isinstance(value, Hashable) else None
    of = value.dtype, str(value.device)
    if value.shape == shape and value.layout is torch.strided:
        return "elements", *of
    return ("number", value.item(), *of) if _is_number(value) else None


def _have(states: Sequence[State], name: str, views: Sequence[Tensor]) -> bool:
    return all(map(operator.is_, [state.get(name) for state in states], views))


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 0


def _is_flat(value: Any, layout: Layout) -> bool:
    return isinstance(value, Tensor) and value.dim() == 1 and value.numel() == len(layout.weights)
