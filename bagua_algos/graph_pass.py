"""What the backward pass that runs is for."""

import torch
from torch import nn


def accumulates(parameter: nn.Parameter) -> bool:
    """Whether it adds a gradient to `parameter.grad`: `torch.autograd.grad` gives it to its caller,
    and `backward(inputs=...)` is for some parameters alone. To be called within the pass.
    """
    try:
        return torch._C._will_engine_execute_node(
            torch.autograd.graph.get_gradient_edge(parameter).node
        )
    except RuntimeError:  # torch.autograd.grad asks for this very gradient
        return False
