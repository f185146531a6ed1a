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

    Raises `ValueError` for one of another shape, and where a buffer of several names would become
    several buffers.
    """
    given = {**parameters, **buffers}
    names = {place: name for place, name in _names(module).items() if name in given}
    own = {place: given[name] for place, name in names.items()}
    args, kwargs = ((x_b,), {}) if isinstance(x_b, Tensor) else ((), dict(x_b))
    # It leaves in `own` what the module puts there. By its own tying it would change a module of
    # two names twice, and leave there what it was given.
    y_b = torch.func.functional_call(module, own, args, kwargs, tie_weights=False)
    for place, name in names.items():
        if name in buffers and own[place] is not own[name]:
            raise ValueError(
                f"the model gives another tensor to one alone of {name!r} and {place!r}, which are "
                "one buffer, and simulated workers' buffers stay one: change it in place, or "
                "choose real workers"
            )
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


def _names(module: nn.Module) -> dict[str, str]:
    """Where tensors of `module` are, each part of it once, however many names it has; and for each
    place the name of its tensor, which is the first of its places.
    """
    names: dict[Tensor, str] = {}
    places: dict[str, str] = {}
    for prefix, part in module.named_modules():
        start = f"{prefix}." if prefix else ""
        for members in (part._parameters, part._buffers):
            for name, x in members.items():
                if x is not None:
                    places[start + name] = names.setdefault(x, start + name)
    return places


def take_back(buffers: Tensors, given: Tensors, others: Tensors) -> None:
    """Copy to `buffers` what a forward pass, which was `given` what is lent in their place, has
    left there, and the `others` that it has put there. Versions do not tell whether it has changed
    any: BatchNorm's kernels leave them.
    """
    for name, x in buffers.items():
        now = others.get(name, given[name])
        if now is not x:
            x.copy_(now.detach())
