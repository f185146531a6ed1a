"""The optimizer's parameters: checks against the model, and the group of each part of a bucket.

A bucket is laid out for communication and knows no groups; an algorithm that updates weights itself
needs every group's own learning rate, betas and weight decay.
"""

import weakref
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from bagua_algos.checkpoint import kept
from bagua_algos.engine.algorithm import Algorithm
from bagua_algos.engine.bucket import Bucket
from bagua_algos.engine.script.own_storage import check_owns_memory
from bagua_algos.settings import check_flags


@kept
class Stretch(NamedTuple):
    """Neighbouring columns `[start, stop)` of a bucket that belong to parameter group `group`.

    It holds for the optimizer's groups as they are: a script may split them. Checkpoints of earlier
    versions have some.
    """

    group: int
    start: int
    stop: int

    @property
    def columns(self) -> tuple[slice, slice]:
        """The index of these columns in `x[w, n]`."""
        return slice(None), slice(self.start, self.stop)

    def options(self, optimizer: Optimizer) -> dict[str, Any]:
        """The group's options as they are now: a scheduler may have changed them."""
        return optimizer.param_groups[self.group]


_FOUND: weakref.WeakKeyDictionary[Bucket, tuple[list[int], list[Stretch]]] = (
    weakref.WeakKeyDictionary()
)
"""Of each bucket, and the sizes of the groups then. These say who is in which: `ScriptChanges`
refuses another order of parameters.
"""


def group_of(optimizer: Optimizer) -> dict[nn.Parameter, dict[str, Any]]:
    """Each parameter's group, as it is now."""
    return {p: group for group in optimizer.param_groups for p in group["params"]}


def stretches(bucket: Bucket, optimizer: Optimizer) -> list[Stretch]:
    """The stretches of `bucket`, which cover all its parameters in order, as the groups are now.

    Raises `ValueError` where a parameter is in none of the optimizer's groups.
    """
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    known = _FOUND.get(bucket)
    if known is None or known[0] != sizes:  # found anew, it takes as long as a small layer
        known = _FOUND[bucket] = sizes, _find(bucket, optimizer)
    return known[1]


def _find(bucket: Bucket, optimizer: Optimizer) -> list[Stretch]:
    number_of = {p: i for i, group in enumerate(optimizer.param_groups) for p in group["params"]}
    num_held, found = len(bucket.gradients), []
    for parameter, start in zip(bucket.parameters, bucket.starts, strict=True):
        if parameter not in number_of:
            raise ValueError(
                f"a trainable parameter of shape {tuple(parameter.shape)} is not in the optimizer: "
                "add it to a parameter group or freeze it (requires_grad=False)"
            )
        group, stop = number_of[parameter], start + parameter.numel() // num_held
        if found and found[-1].group == group:
            found[-1] = Stretch(group, found[-1].start, stop)
        else:
            found.append(Stretch(group, start, stop))
    return found


def check_parameters(model: nn.Module, optimizer: Optimizer, algorithm: Algorithm) -> None:
    """Raise `ValueError` where a parameter of `model` has no shape, no values or no memory of its
    own, `algorithm` cannot train it, or one of `optimizer` is not the model's; or where a buffer or
    frozen parameter cannot take other workers' values, a flag of `algorithm` is none, or
    `optimizer` runs no hooks.
    """
    check_flags(algorithm)
    if torch.is_inference_mode_enabled():
        raise ValueError(
            "a model is distributed within torch.inference_mode(), where tensors are made that no "
            "training can use: call distribute() outside of it"
        )
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise ValueError(
            f"{type(optimizer).__name__} has not called torch.optim.Optimizer.__init__, so that "
            "its steps run no hooks: distribute the optimizer that it is around, and wrap that "
            "afterwards"
        )
    known = set(model.parameters())
    for name, parameter in model.named_parameters():
        _check_parameter(name, parameter, algorithm)
    check_untrained(model)
    check_owns_memory(model)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in known:
                raise ValueError(
                    f"the optimizer has a parameter of shape {tuple(parameter.shape)} that is not "
                    "the model's, so that workers would train it apart: make it the model's, or "
                    "give it an optimizer of its own"
                )


def _check_parameter(name: str, parameter: nn.Parameter, algorithm: Algorithm) -> None:
    if is_lazy(parameter):
        raise ValueError(
            "the model has a lazy parameter, which has no shape yet: "
            "run one forward pass before the model is distributed"
        )
    if parameter.is_meta:
        raise ValueError(
            f"{name!r} is on the meta device and has no values yet: "
            "call model.to_empty(device=...) and initialise it before it is distributed"
        )
    if parameter.requires_grad:
        if parameter.grad_dtype not in (None, parameter.dtype):
            raise ValueError(
                f"{name!r} is {parameter.dtype} and has gradients of {parameter.grad_dtype} "
                "(grad_dtype), and those of a distributed model lie in buckets of the "
                "parameter's type: leave grad_dtype as it is"
            )
        try:
            algorithm.check_parameter(parameter)
        except ValueError as error:
            raise ValueError(f"{name!r}: {error}") from None


def check_untrained(model: nn.Module) -> None:
    """Raise `ValueError` where a buffer or frozen parameter cannot take other workers' values."""
    frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
    for name, x in [*frozen, *model.named_buffers()]:
        if x.is_quantized:
            raise ValueError(
                f"{name!r} is quantized, with a scale that does not travel with its codes: keep it "
                "as an attribute that is no buffer, alike on all workers, or its codes and scales "
                "as plain tensors"
            )
        if x.layout is not torch.strided:
            raise ValueError(
                f"{name!r} is {str(x.layout).removeprefix('torch.')}, and buffers and frozen "
                "parameters travel as plain tensors: keep it as an attribute that is no buffer, "
                "alike on all workers"
            )
        if x.numel() and any(n > 1 and not s for n, s in zip(x.shape, x.stride(), strict=True)):
            raise ValueError(
                f"{name!r} has elements that share their memory, as expand() makes them, so that "
                "other workers' values cannot be written to it: give it a clone()"
            )
