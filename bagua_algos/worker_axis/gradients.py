"""The gradients of stacked workers, written part by part to where they are to be.

A hook that runs after a parameter's gradient has accumulated may keep gradients in memory of its
own, such as a bucket. Then they are written there at once: copies of all workers' gradients took a
third of an MLP's step.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bagua_algos.graph_pass import KeepsGradients, accumulates, dense
from bagua_algos.worker_axis.linear import writing_gradients
from bagua_algos.worker_axis.rows import Part


class _Place(NamedTuple):
    """Where a keeper has a parameter's gradient, and how many passes had written there before."""

    keeper: KeepsGradients
    view: Tensor
    num_passes: int


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
            torch.empty_like(p, requires_grad=False) if place is None else place.view
            for p, place in zip(parameters, self._places, strict=True)
        ]
        self._is_used = [False] * len(parameters)

    def put(self, part: Part, result: Tensor, weights: Tensor | None = None) -> None:
        """Those of a part's result, times `weights`; None: of one number, as it is. Then torch
        imports no sympy, which takes a second, to compare shapes. Raises `ValueError` for sparse
        ones.
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
            written = place.data_ptr(), place.stride()
            if (dense(gradient).data_ptr(), gradient.stride()) != written:
                place.copy_(gradient)

    def scale_(self, weights_w: Tensor) -> None:
        """Multiply each worker's by a number. Raises `ValueError` where another pass has begun that
        writes to the same places.
        """
        lent = [place for place in self._places if place is not None]
        if any(place.keeper.num_passes > place.num_passes for place in lent):
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
                continue
            now = _place_of(parameter)
            if now is not None and now.view is place.view and accumulates(parameter):
                now.keeper.written(parameter)
                yield None
            else:
                yield gradient.clone()


def _place_of(parameter: nn.Parameter) -> _Place | None:
    """That of the one hook that keeps its gradient, if it has a place by now."""
    hooks = (parameter._post_accumulate_grad_hooks or {}).values()
    keeper = next((hook for hook in hooks if isinstance(hook, KeepsGradients)), None)
    view = None if keeper is None else keeper.place_of(parameter)
    return None if keeper is None or view is None else _Place(keeper, view, keeper.num_passes)
