"""What a model does to its buffers: those of simulated workers are rows, which stay in place."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bagua_algos.worker_axis.inputs import Inputs

Tensors = Mapping[str, Tensor]


def lent(buffers: Tensors) -> Tensors:
    """What a forward pass gets in place of `buffers`: a graph may keep it, as it is then, after the
    buffers have changed.
    """
    return {name: x.clone() for name, x in buffers.items()} if torch.is_grad_enabled() else buffers


def call_with(
    module: nn.Module, parameters: Tensors, buffers: Tensors, x_b: Inputs
) -> tuple[Tensor, dict[str, Tensor]]:
    """What `module` makes of a batch, and the tensors that it puts in place of buffers.

    Raises `ValueError` for one of another shape.
    """
    own = {**parameters, **buffers}  # what the module puts there, functional_call leaves there
    args, kwargs = ((x_b,), {}) if isinstance(x_b, Tensor) else ((), dict(x_b))
    y_b = torch.func.functional_call(module, own, args, kwargs)
    others = {name: own[name] for name, x in buffers.items() if own[name] is not x}
    for name, other in others.items():
        shape = None if other is None else list(other.shape)
        if shape != list(buffers[name].shape):
            raise ValueError(
                f"the model gives its buffer {name!r} of shape {list(buffers[name].shape)} another "
                f"of shape {shape}, and simulated workers' buffers keep theirs: build the model "
                "with the buffer as large as it becomes, or choose real workers"
            )
    return y_b, others


def take_back(buffers: Tensors, given: Tensors, others: Tensors) -> None:
    """Copy to `buffers` what a forward pass, which was `given` what is lent in their place, has
    left there, and the `others` that it has put there. Versions do not tell whether it has changed
    any: BatchNorm's kernels leave them.
    """
    for name, x in buffers.items():
        now = others.get(name, given[name])
        if now is not x:
            x.copy_(now.detach())
