"""Between autograd's backward passes and those who keep gradients in memory of their own."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class KeepsGradients(ABC):
    """Keeps the gradients of parameters in its memory, such as a bucket; so does the hook, after a
    parameter's gradient has accumulated, that stands for it.
    """

    @property
    @abstractmethod
    def num_passes(self) -> int:
        """How many backward passes have begun that write there."""

    @abstractmethod
    def place_of(self, parameter: nn.Parameter) -> Tensor | None:
        """Where the gradient may be written by now; None where that is left to autograd."""

    @abstractmethod
    def written(self, parameter: nn.Parameter) -> None:
        """The pass that runs has written the gradient there: it is `parameter.grad` from here on.
        Autograd calls the hook when all else has been added to it, or nothing.
        """


def accumulates(parameter: nn.Parameter) -> bool:
    """Whether the backward pass that runs adds to `parameter.grad`: `torch.autograd.grad` gives
    gradients to its caller, and `backward(inputs=...)` is for some parameters alone.
    """
    try:
        return torch._C._will_engine_execute_node(
            torch.autograd.graph.get_gradient_edge(parameter).node
        )
    except RuntimeError:  # torch.autograd.grad asks for this very gradient
        return False


def dense(gradient: Tensor) -> Tensor:
    """`gradient`. Raises `ValueError` if it is sparse."""
    if gradient.is_sparse:
        raise ValueError("sparse gradients are not supported: make the layer without sparse=True")
    return gradient
