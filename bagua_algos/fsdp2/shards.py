"""The shards of an FSDP2 model: its units, and the local tensors of its distributed ones.

The only module of this package that imports `torch.distributed.fsdp` and
`torch.distributed.tensor`. They take a second to import, so `distribute` imports this room only for
a model that needs it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.distributed.tensor import DTensor, Shard

from bagua_algos.communication.process_group import ProcessGroupCommunicator


@dataclass(frozen=True, kw_only=True)
class Unit:
    """The trainable parameters that one `fully_shard` call has put together, by their names."""

    name: str
    parameters: dict[str, nn.Parameter]


class LocalShard(nn.Parameter):
    """This process's part of a distributed parameter, `whole`, as a parameter of its own: its
    shape, its type and its gradient. Its values are in its bucket's weights.
    """

    whole: nn.Parameter

    @classmethod
    def of(cls, whole: nn.Parameter) -> "LocalShard":
        """The part of `whole` that this process holds."""
        shard = cls(local(whole), requires_grad=whole.requires_grad)
        shard.whole = whole
        return shard

    @property
    def grad(self) -> Tensor | None:
        """This process's part of `whole.grad`."""
        gradient = self.whole.grad
        return None if gradient is None else local(gradient)

    @grad.setter
    def grad(  # pyright: ignore[reportIncompatibleVariableOverride]
        self, gradient: Tensor | None
    ) -> None:
        self.whole.grad = None if gradient is None else distributed(gradient, self.whole)


def units(model: nn.Module) -> list[Unit]:
    """The units of `model` that have trainable parameters, in the order in which backward is
    expected to finish them.

    Every parameter must be a distributed tensor by now: `reshard` first.
    """
    found: dict[nn.Module, Unit] = {}
    names = {parameter: name for name, parameter in model.named_parameters()}

    def visit(module: nn.Module, name: str, unit: Unit | None) -> None:
        if isinstance(module, FSDPModule):
            unit = found.setdefault(module, Unit(name=name, parameters={}))
        assert unit is not None, "the model itself is sharded"
        for parameter in module.parameters(recurse=False):
            if parameter.requires_grad and parameter in names:
                unit.parameters[names.pop(parameter)] = parameter
        for child_name, child in module.named_children():
            visit(child, f"{name}.{child_name}" if name else child_name, unit)

    visit(model, "", None)
    return [unit for unit in reversed(found.values()) if unit.parameters]


def is_distributed(x: Tensor) -> bool:
    """Whether `x` is a distributed tensor."""
    return isinstance(x, DTensor)


def is_unit(module: nn.Module) -> bool:
    """Whether `fully_shard` was called with `module`."""
    return isinstance(module, FSDPModule)


def is_sharded(x: Tensor) -> bool:
    """Whether the distributed tensor `x` is cut along one dimension of its only mesh dimension."""
    assert isinstance(x, DTensor)
    return len(x.placements) == 1 and isinstance(x.placements[0], Shard)


def mesh_of(x: Tensor) -> DeviceMesh:
    """The mesh of processes that the distributed tensor `x` is laid out on."""
    assert isinstance(x, DTensor)
    return x.device_mesh


def layout(x: Tensor) -> str:
    """How the distributed tensor `x` is laid out, in words that are equal on equal replicas."""
    assert isinstance(x, DTensor)
    return f"{tuple(x.shape)} {x.dtype} {x.placements} {x.device_mesh.size()}"


def shard_workers(x: Tensor) -> ProcessGroupCommunicator:
    """The processes that share the sharded tensor `x` out among them, by their rank in the mesh."""
    assert isinstance(x, DTensor)
    return ProcessGroupCommunicator(x.device_mesh.get_group())


def local(x: Tensor) -> Tensor:
    """This process's part of the distributed tensor `x`, sharing its storage; another tensor is all
    here.
    """
    if not isinstance(x, DTensor):
        return x.detach()
    with torch.no_grad():
        return x.to_local()


def distributed(part: Tensor, like: Tensor) -> Tensor:
    """A distributed tensor of which this process holds `part`, laid out as `like` is; it shares the
    storage of `part`.
    """
    assert isinstance(like, DTensor)
    return DTensor.from_local(
        part,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def reshard(model: nn.Module) -> None:
    """Drop every gathered copy of weights: the next forward gathers what the shards hold then."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def count_change_of_gathered(model: nn.Module) -> None:
    """Have torch count a change of all gathered weights: a backward pass through a graph that they
    are saved for, which would gather new ones, is refused.
    """
    for group in _private_groups(model):
        for parameter in getattr(group, "fsdp_params", ()):
            gathered = getattr(parameter, "_unsharded_param", None)
            if gathered is not None:
                torch.autograd.graph.increment_version(gathered)


def synchronize_gradients(model: nn.Module, *, enabled: bool) -> None:
    """Have the next backward passes reduce gradients over the shards, or only accumulate them."""
    cast(FSDPModule, model).set_requires_gradient_sync(enabled)


def keeps_whole_gradients(model: nn.Module) -> bool:
    """Whether a backward pass has left gradients that are accumulated alone, and not yet reduced
    over the shards: no optimizer sees them.
    """
    for group in _private_groups(model):
        for parameter in getattr(group, "fsdp_params", ()):
            gathered = getattr(parameter, "_unsharded_param", None)
            in_own_type = None if gathered is None else gathered.grad
            in_other_type = getattr(parameter, "unsharded_accumulated_grad", None)
            if in_own_type is not None or in_other_type is not None:
                return True
    return False


def offloads_to_cpu(model: nn.Module) -> bool:
    """Whether a unit keeps its shards in the host's memory."""
    return any(
        isinstance(getattr(group, "offload_policy", None), CPUOffloadPolicy)
        for group in _private_groups(model)
    )


def has_all_reduce_hook(model: nn.Module) -> bool:
    """Whether somebody has called `set_all_reduce_hook` on a unit."""
    groups = _private_groups(model)
    return any(getattr(group, "_all_reduce_hook", None) is not None for group in groups)


def divide_factors(model: nn.Module) -> set[float]:
    """Those that `set_gradient_divide_factor` has been called with, of all units."""
    factors = (getattr(group, "gradient_divide_factor", None) for group in _private_groups(model))
    return {factor for factor in factors if factor is not None}


def _private_groups(model: nn.Module) -> Iterable[object]:
    """FSDP2 says nothing in public of its own settings."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            yield from getattr(module._get_fsdp_state(), "_fsdp_param_groups", ())
