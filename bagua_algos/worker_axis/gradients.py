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

    def place_of(self, parameter: nn.Parameter) -> Tensor | None:
        """Where the gradient may be written before the hook is called, which then finds it as
        `parameter.grad`; None where that is left to autograd.
        """
        ...

    def __call__(self, parameter: nn.Parameter) -> None:
        """Its gradient is there. Autograd, which has nothing to add, may say so once more."""
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
        self._keepers = [_keeper(p) for p in parameters]
        self._places = [
            None if keeper is None or not in_places else keeper.place_of(p)
            for p, keeper in zip(parameters, self._keepers, strict=True)
        ]
        self._stacked = [
            torch.empty_like(p, requires_grad=False) if place is None else place
            for p, place in zip(parameters, self._places, strict=True)
        ]
        self._is_used = [False] * len(parameters)
        self._versions: list[int] = []

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

    def close(self) -> None:
        """All parts are there, and autograd's backward pass is to come."""
        self._versions = self._versions_now()

    def scale_(self, weights_w: Tensor) -> None:
        """Multiply each worker's by a number, after `close`. Raises `ValueError` where somebody has
        written to the places since.
        """
        if self._versions != self._versions_now():
            raise ValueError(
                "the gradients of stacked workers have been overwritten between forward and "
                "backward, by another backward pass: call backward() before the next forward"
            )
        if not (weights_w == 1).all():
            for gradient in self._stacked:
                gradient.mul_(weights_w.view(-1, *[1] * (gradient.dim() - 1)))

    def handed_on(self, *, makes_graph: bool) -> Iterator[Tensor | None]:
        """For autograd, the gradient of each parameter; None where no worker has used it, and where
        hooks are told of it here, as autograd tells them in a pass that `makes_graph` or not. They
        are gone then.
        """
        stacked, self._stacked = self._stacked, []
        for number, parameter in enumerate(self._parameters):
            keeper, place = self._keepers[number], self._places[number]
            if not self._is_used[number]:
                yield None
            elif keeper is None or place is None:
                yield stacked[number]
            elif not accumulates(parameter):
                yield place.clone()  # which the next pass will not write to
            else:
                parameter.grad = place
                with torch.set_grad_enabled(makes_graph):
                    keeper(parameter)
                yield None

    def _versions_now(self) -> list[int]:
        return [place._version for place in self._places if place is not None]


def _keeper(parameter: nn.Parameter) -> KeepsGradients | None:
    hooks = (parameter._post_accumulate_grad_hooks or {}).values()
    return next((hook for hook in hooks if isinstance(hook, KeepsGradients)), None)
