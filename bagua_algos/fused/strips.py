"""Strips: parameters that are neighbours in memory, which an optimizer takes for one flat tensor.

weights     p0 p1 p2 | p3 p4       neighbours: a bucket's, or those that were put together
gradients   g0 g1 g2 | g3 g4       neighbours too, or copied together
state       s0 s1 s2 | s3 s4       put together once

Of several workers, a strip is a bucket, with the rows of all (`bagua_algos.fused.layouts`).
"""

import itertools
import operator
from collections.abc import Hashable, Iterator, MutableMapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bagua_algos.engine.bucket import Bucket
from bagua_algos.fused.equal_rows import are_equal
from bagua_algos.fused.homes import Homes
from bagua_algos.fused.layouts import Layout, OneRow, Rows, Slices
from bagua_algos.fused.states import Constants, Elements, Numbers, Shared, State, kind, shared

States = MutableMapping[Any, State]


class Strip:
    """Parameters that have gradients, and equal numbers and constants in their states.

    Args:
        parameters: in the order of memory.
        states: the optimizer's; their tensors become parts of this strip's.
        layout: of the parameters.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], states: States, layout: Layout) -> None:
        self._parameters = parameters
        self._layout = layout
        self.weights = nn.Parameter(layout.weights)
        self._own = [states.get(p) for p in parameters]
        self._buffer: Tensor | None = None
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
        """Hand what the optimizer has made of the strip's state on to the parameters' own.

        Raises `ValueError` where it has given `weights` another shape, type or device.
        """
        self.weights.grad = None
        self._bring_home(state)
        self._layout.end_step()
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
                self._shared[name] = shared(name, value, self._layout)
                self._shared[name].give(own)
        for name in self._shared.keys() - state.keys():
            del self._shared[name]
            for known in own:
                known.pop(name, None)

    def _bring_home(self, state: State) -> None:
        """Where the optimizer has given `weights` other memory (`p.data = ...`), copy what is there
        to where the parameters are.
        """
        home, now = self._layout.weights, self.weights.data
        is_of_kind = (now.shape, now.dtype, now.device) == (home.shape, home.dtype, home.device)
        if is_of_kind and (now.data_ptr(), now.stride()) == (home.data_ptr(), home.stride()):
            return
        self.weights.data = home
        if not is_of_kind:
            raise ValueError(
                f"the optimizer has made {now.dtype} {list(now.shape)} on {now.device} of weights "
                f"that are {home.dtype} {list(home.shape)} on {home.device}, so it cannot be "
                "fused: call unfuse_optimizer() with it first"
            )
        storage = home.untyped_storage().data_ptr()
        for name, value in state.items():  # the weights of before, which it has kept
            if isinstance(value, Tensor) and value.untyped_storage().data_ptr() == storage:
                state[name] = value.clone()
        home.copy_(now)

    def _known(self) -> list[State]:
        """The parameters' own states; none before the first step."""
        return [state for state in self._own if state is not None]

    def _put_together(self, name: str, first: Any, own: Sequence[State]) -> Shared:
        if not isinstance(first, Tensor):
            return Constants(name, first)
        if first.shape != self._parameters[0].shape:
            return Numbers(name, first.clone(), len(own))
        together = self._layout.copied([state[name].detach() for state in own])
        return Elements(name, together, self._layout)

    def _gradient(self) -> Tensor:
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        together = self._layout.together(gradients)
        if together is not None:
            return together
        if self._buffer is None:
            self._buffer = torch.zeros_like(self.weights.data)
        return self._layout.copied(gradients, out=self._buffer)


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
            key = _key(parameter, states.get(parameter)) if can_be_flat(parameter) else None
            rest.append(parameter) if key is None else able.append((parameter, key))
    able.sort(key=lambda pair: pair[0].data_ptr())
    strips = []
    for neighbours in _neighbours(able, homes):
        if len(neighbours) > 1:
            strips.append(Strip(neighbours, states, Slices(neighbours, homes)))
        else:
            rest += neighbours
    return strips, rest


def find_stacked(
    parameters: Sequence[nn.Parameter],
    states: States,
    buckets: Sequence[Bucket],
    *,
    agree: bool,
) -> list[Strip]:
    """The strips of several workers' buckets, if these are all that has gradients among
    `parameters` of one group; else none. Where workers `agree`, of one row each, unless states that
    were loaded differ.
    """
    left = {p for p in parameters if p.grad is not None}
    strips = []
    for bucket in buckets:
        own = bucket.parameters
        if left.issuperset(own) and _are_at_home(bucket) and _are_alike(own, states):
            has_one = agree and _have_equal_rows(own, states)
            strips.append(Strip(own, states, OneRow(bucket) if has_one else Rows(bucket)))
            left.difference_update(own)
    return [] if left else strips


def _have_equal_rows(parameters: Sequence[nn.Parameter], states: States) -> bool:
    """Whether what an optimizer keeps of each element is the same for all workers."""
    own = [(p, value) for p in parameters for value in states.get(p, {}).values()]
    tensors = [x for p, x in own if isinstance(x, Tensor) and x.shape == p.shape]
    return all(are_equal(x.detach().reshape(len(x), -1)) for x in tensors)


def of_own_rows(state: State) -> State:
    """A state in which each worker has its own memory, where one row was all workers'."""
    return {
        name: value.clone() if isinstance(value, Tensor) and _is_of_one_row(value) else value
        for name, value in state.items()
    }


def _is_of_one_row(value: Tensor) -> bool:
    return value.dim() > 0 and value.stride(0) == 0


def _are_at_home(bucket: Bucket) -> bool:
    """Whether the parameters are where the bucket has put them."""
    views = bucket.views(bucket.weights)
    return all(
        p.data_ptr() == view.data_ptr() and p.stride() == view.stride()
        for p, view in zip(bucket.parameters, views, strict=True)
    )


def _are_alike(parameters: Sequence[nn.Parameter], states: States) -> bool:
    """Whether an optimizer may take them for one, wherever they are."""
    if not all(map(_is_plain, parameters)):
        return False
    keys = {_key(p, states.get(p)) for p in parameters}
    return len(keys) == 1 and None not in keys


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
    return _is_plain(parameter) and parameter.is_contiguous()


def _is_plain(parameter: Tensor) -> bool:
    return (
        type(parameter) in (nn.Parameter, Tensor)
        and not vars(parameter)
        and parameter.layout is torch.strided
        and parameter.dim() > 0
        and parameter.numel() > 0
    )


def _key(parameter: nn.Parameter, state: State | None) -> Hashable | None:
    """What neighbours must have in common; None where nothing can be."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.layout is not torch.strided:
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
