"""The gradients of stacked workers, written part by part to where they are to be.

A hook that runs after a parameter's gradient has accumulated may keep gradients in memory of its
own, such as a bucket. Then they are written there at once: copies of all workers' gradients took as
long as a quarter of a small network's pass.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bagua_algos.graph_pass import accumulates
from bagua_algos.worker_axis.linear import writing_gradients
from bagua_algos.worker_axis.rows import Part


@runtime_checkable
class KeepsGradients(Protocol):
    """A hook after a parameter's gradient has accumulated, which keeps gradients in its memory."""

    @property
    def num_passes(self) -> int:
        """How many backward passes have begun that write there."""
        ...

    def place_of(self, parameter: nn.Parameter) -> Tensor | None:
        """Where the gradient may be written by now; None where that is left to autograd."""
        ...

    def written(self, parameter: nn.Parameter) -> None:
        """The pass that runs has written the gradient there: it is `parameter.grad` from here on.
        Autograd calls the hook when all else has been added to it, or nothing.
        """
        ...


class StackedGradients:
    """The gradients of stacked parameters in one pass.

    Args:
        parameters: stacked.
        in_places: whether they may be written to where hooks keep them; else autograd is given new
            memory.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], *, in_places: bool) -> None:
        self._parameters = parameters
        self._places = [_place_of(p) if in_places else None for p in parameters]
        self._stacked = [
            torch.empty_like(p, requires_grad=False) if place is None else place
            for p, place in zip(parameters, self._places, strict=True)
        ]
        self._is_used = [False] * len(parameters)
        self._passes = [_num_passes(p) for p in parameters]

    def put(self, part: Part, result: Tensor, weights: Tensor | None = None) -> None:
        """Those of a part's result, times `weights`; None: of one number, as it is. Then torch
        imports no sympy, which takes a second, to compare shapes.
        """
        rows = [stacked[part.rows] for stacked in self._stacked]
        by_layers = writing_gradients(part.trained, rows) if part.is_stacked else nullcontext()
        with by_layers:
            own = torch.autograd.grad(result, part.trained, weights, allow_unused=True)
        for number, (gradient, place) in enumerate(zip(own, rows, strict=True)):
            if gradient is None:
                place.zero_()
                continue
            self._is_used[number] = True
            if (gradient.data_ptr(), gradient.stride()) != (place.data_ptr(), place.stride()):
                place.copy_(gradient)

    def scale_(self, weights_w: Tensor) -> None:
        """Multiply each worker's by a number. Raises `ValueError` where another pass has begun that
        writes to the same places.
        """
        for parameter, place, before in zip(
            self._parameters, self._places, self._passes, strict=True
        ):
            if place is not None and _num_passes(parameter) not in (before, None):
                raise ValueError(
                    "the gradients of stacked workers have been overwritten between forward and "
                    "backward, by another backward pass: call backward() before the next forward"
                )
        if not (weights_w == 1).all():
            for gradient in self._stacked:
                gradient.mul_(weights_w.view(-1, *[1] * (gradient.dim() - 1)))

    def handed_on(self) -> Iterator[Tensor | None]:
        """For autograd, the gradient of each parameter; None where no worker has used it, and where
        it is `parameter.grad` by now. They are gone then.

        What is somebody else's by now is a copy: of `torch.autograd.grad`, of hooks that have come
        since, or where a gradient has accumulated meanwhile.
        """
        stacked, self._stacked = self._stacked, []
        found = zip(self._parameters, self._places, stacked, self._is_used, strict=True)
        for parameter, place, gradient, is_used in found:
            if not is_used or place is None:
                yield gradient if is_used else None
            elif accumulates(parameter) and _place_of(parameter) is place:
                _keeper_of(parameter).written(parameter)
                yield None
            else:
                yield place.clone()


def _keepers(parameter: nn.Parameter) -> list[KeepsGradients]:
    hooks = (parameter._post_accumulate_grad_hooks or {}).values()
    return [hook for hook in hooks if isinstance(hook, KeepsGradients)]


def _keeper_of(parameter: nn.Parameter) -> KeepsGradients:
    return _keepers(parameter)[0]


def _place_of(parameter: nn.Parameter) -> Tensor | None:
    return next((keeper.place_of(parameter) for keeper in _keepers(parameter)), None)


def _num_passes(parameter: nn.Parameter) -> int | None:
    return next((keeper.num_passes for keeper in _keepers(parameter)), None)
