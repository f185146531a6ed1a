"""Strips: parameters that are neighbours in memory, which an optimizer takes for one flat tensor.

weights     p0 p1 p2 | p3 p4       neighbours: a bucket's, or those that were put together
gradients   g0 g1 g2 | g3 g4       neighbours too, or copied together
state       s0 s1 s2 | s3 s4       put together once
"""

import bisect
import itertools
import operator
from collections.abc import Hashable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bagua_algos.fused.states import Constants, Elements, Numbers, Shared, State, kind, shared

States = MutableMapping[Any, State]


class Homes:
    """Flat tensors [n] whose neighbouring parts may be taken for one tensor."""

    def __init__(self) -> None:
        self._homes: list[Tensor] = []
        self._starts: list[int] = []

    def add(self, flat: Tensor) -> None:
        """One more; it is kept alive."""
        place = bisect.bisect(self._starts, flat.data_ptr())
        self._homes.insert(place, flat.detach())
        self._starts.insert(place, flat.data_ptr())

    def together(self, tensors: Sequence[Tensor]) -> Tensor | None:
        """One flat tensor for contiguous ones that follow each other in a home; else None."""
        start = address = tensors[0].data_ptr()
        for tensor in tensors:
            if tensor.data_ptr() != address or not tensor.is_contiguous():
                return None
            address += tensor.numel() * tensor.element_size()
        place = bisect.bisect(self._starts, start) - 1
        if place < 0:
            return None
        home, size = self._homes[place], tensors[0].element_size()
        first, end = (start - self._starts[place]) // size, (address - self._starts[place]) // size
        if home.dtype != tensors[0].dtype or end > home.numel():
            return None
        return home[first:end]


class Strip:
    """Two or more parameters that have gradients, and equal numbers and constants in their states.

    Args:
        parameters: in the order of memory.
        states: the optimizer's; their tensors become slices of this strip's.
        homes: of the weights, and perhaps of the gradients.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], states: States, homes: Homes) -> None:
        self._parameters = parameters
        self._homes = homes
        self._shapes = [p.shape for p in parameters]
        weights = homes.together([p.data for p in parameters])
        assert weights is not None, "the parameters are neighbours"
        self.weights = nn.Parameter(weights)
        self._own = [states.get(p) for p in parameters]
        self._buffer: Tensor | None = None
        self._at_home: tuple[list[int], Tensor] | None = None
        """Where the gradients were, if that was in a home, and all of them as one."""
        self._shared: dict[str, Shared] = {}
        own = self._known()
        for name, first in list(own[0].items()) if own else ():
            self._shared[name] = self._put_together(name, first, own)
            self._shared[name].give(own)

    def is_current(self, states: States) -> bool:
        """Whether the parameters' own states are still what this strip has made of them."""
        own = [states.get(p) for p in self._parameters]
        if not all(map(operator.is_, own, self._own)):
            return False
        known = self._known()
        return not known or (
            set(map(len, known)) == {len(self._shared)}
            and all(part.is_current(known) for part in self._shared.values())
        )

    def begin(self) -> State:
        """Give `weights` its gradient; returns the state of the whole strip."""
        self.weights.grad = self._gradient()
        return {name: part.value for name, part in self._shared.items()}

    def end(self, state: State, states: States) -> None:
        """Hand what the optimizer has made of the strip's state on to the parameters' own."""
        self.weights.grad = None
        # Else a backward through a graph of before the step would not be refused.
        torch.autograd.graph.increment_version(self._parameters)
        if self._own[0] is None:
            if not state:
                return
            self._own = [states[p] for p in self._parameters]  # makes them
        own = self._known()
        for name, value in state.items():
            part = self._shared.get(name)
            if part is None or not part.take(value, own):
                self._shared[name] = shared(name, value, self._shapes)
                self._shared[name].give(own)
        for name in self._shared.keys() - state.keys():
            del self._shared[name]
            for known in own:
                known.pop(name, None)

    def _known(self) -> list[State]:
        """The parameters' own states; none before the first step."""
        return [state for state in self._own if state is not None]

    def _put_together(self, name: str, first: Any, own: Sequence[State]) -> Shared:
        if not isinstance(first, Tensor):
            return Constants(name, first)
        if first.shape != self._shapes[0]:
            return Numbers(name, first.clone(), len(own))
        together = torch.cat([state[name].detach().reshape(-1) for state in own])
        return Elements(name, together, self._shapes)

    def _gradient(self) -> Tensor:
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        addresses = [gradient.data_ptr() for gradient in gradients]
        if self._at_home is None or addresses != self._at_home[0]:
            together = self._homes.together(gradients)
            self._at_home = None if together is None else (addresses, together)
        elif not all(gradient.is_contiguous() for gradient in gradients):
            self._at_home = None
        if self._at_home is not None:
            return self._at_home[1]
        if self._buffer is None:
            self._buffer = torch.empty_like(self.weights.data)
        flat = [g if g.dim() == 1 else g.reshape(-1) for g in gradients]
        return torch.cat(flat, out=self._buffer)


def find_strips(
    parameters: Sequence[nn.Parameter], states: States, homes: Homes
) -> tuple[list[Strip], list[nn.Parameter]]:
    """The strips among `parameters` of one group, and those that are in none; without those that
    have no gradient.
    """
    rest: list[nn.Parameter] = []
    able: list[tuple[nn.Parameter, Hashable]] = []
    for parameter in parameters:
        if parameter.grad is not None:
            key = _key(parameter, states.get(parameter))
            rest.append(parameter) if key is None else able.append((parameter, key))
    able.sort(key=lambda pair: pair[0].data_ptr())
    strips = []
    for neighbours in _neighbours(able, homes):
        if len(neighbours) > 1:
            strips.append(Strip(neighbours, states, homes))
        else:
            rest += neighbours
    return strips, rest


def _neighbours(
    able: Sequence[tuple[nn.Parameter, Hashable]], homes: Homes
) -> Iterator[list[nn.Parameter]]:
    group: list[nn.Parameter] = []
    for (before, key_before), (parameter, key) in itertools.pairwise([(None, None), *able]):
        assert parameter is not None
        is_next = before is not None and homes.together([before.data, parameter.data]) is not None
        if is_next and key == key_before:
            group.append(parameter)
        else:
            if group:
                yield group
            group = [parameter]
    if group:
        yield group


def can_be_flat(parameter: Tensor) -> bool:
    """Whether a parameter is dense, without gaps, without attributes that an optimizer may ask for,
    and has any elements.
    """
    return (
        type(parameter) in (nn.Parameter, Tensor)
        and not vars(parameter)
        and parameter.layout is torch.strided
        and parameter.dim() > 0
        and parameter.numel() > 0
        and parameter.is_contiguous()
    )


def _key(parameter: nn.Parameter, state: State | None) -> Hashable | None:
    """What neighbours must have in common; None where nothing can be."""
    gradient = parameter.grad
    assert gradient is not None
    if not can_be_flat(parameter) or gradient.layout is not torch.strided:
        return None
    key: list[Hashable] = [parameter.dtype, str(parameter.device), gradient.dtype]
    if state is None:
        return tuple(key)
    for name in sorted(state):
        kind_of = kind(state[name], parameter.shape)
        if kind_of is None:
            return None
        key.append((name, kind_of))
    return (*key, "has a state")
