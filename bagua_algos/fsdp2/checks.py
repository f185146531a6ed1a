"""What cannot be trained over the replicas of a sharded model: each is refused by one sentence."""

import hashlib
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from bagua_algos.communication.communicator import Communicator
from bagua_algos.engine.script.grad_scaler import check_scaler_is_known
from bagua_algos.fsdp2.bucket import ShardBucket
from bagua_algos.fsdp2.shards import (
    Unit,
    divide_factors,
    has_all_reduce_hook,
    is_distributed,
    is_sharded,
    is_unit,
    keeps_whole_gradients,
    layout,
    mesh_of,
    offloads_to_cpu,
)

HOW = 'fully_shard(unit, mesh=mesh["shard"])'
WORKERS = 'communicator=bagua_algos.ProcessGroupCommunicator(mesh["replicate"].get_group())'

NO_SCALER = (
    "a GradScaler is not supported with fully_shard: train in bfloat16, "
    "MixedPrecisionPolicy(param_dtype=torch.bfloat16), which needs no scaling"
)


def check_model(model: nn.Module) -> None:
    """Raise `ValueError` unless each trainable parameter is sharded, along one mesh dimension and
    no more, and gradients are averaged over the shards alone.
    """
    if hasattr(model, "_orig_mod"):
        raise ValueError(
            "the model was compiled before it is distributed: call distribute with the plain model "
            "first, and torch.compile then"
        )
    if not is_unit(model):
        raise ValueError(
            "parts of the model are distributed tensors, but fully_shard was not called with the "
            f"model itself: call {HOW} with it, after its parts"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("the model has no parameter that requires a gradient")
    meshes = set()
    for name, parameter in model.named_parameters():
        if is_distributed(parameter):
            _check_layout(name, parameter)
            meshes.add(mesh_of(parameter))
        elif parameter.requires_grad:
            raise ValueError(
                f"{name!r} is trainable and not sharded (ignored_params), so that nobody "
                "averages its gradient over the shards: freeze it, or have fully_shard take it in"
            )
    if len(meshes) > 1:
        raise ValueError(
            f"the parameters are sharded over {len(meshes)} meshes, and their replicas may be "
            f"other workers: call {HOW} with one mesh for all units"
        )
    check_settings(model)


def _check_layout(name: str, parameter: nn.Parameter) -> None:
    if not is_sharded(parameter):
        raise ValueError(
            f"{name!r} is laid out over {mesh_of(parameter)}, where FSDP2 averages over replicas "
            f"by itself or matrices are split: shard over one dimension and no more, {HOW}"
        )


def check_settings(model: nn.Module) -> None:
    """Raise `ValueError` for settings of units that replicas cannot have, whenever made."""
    if offloads_to_cpu(model):
        raise ValueError(
            "the shards are offloaded to the CPU, where their replicas cannot be reached: "
            "call fully_shard without CPUOffloadPolicy"
        )
    if has_all_reduce_hook(model):
        raise ValueError(
            "a unit has an all-reduce hook, which would average its gradients a second time: "
            "leave set_all_reduce_hook out"
        )
    for factor in divide_factors(model):
        if all(factor == mesh_of(p).size() for p in model.parameters() if is_distributed(p)):
            continue
        raise ValueError(
            f"a unit divides its gradients by {factor:g} (set_gradient_divide_factor), which "
            "are those of its own replica alone: afterwards replicas are averaged, where HSDP adds "
            "them up; leave it out, and multiply the loss by a factor of its own"
        )


def check_workers(communicator: Communicator, shard_ranks: Sequence[int]) -> None:
    """Raise `ValueError` unless `communicator` is of the replicas of this process's shards.

    `shard_ranks` are the processes that hold the rest of the same replica.
    """
    if len(communicator.ranks) != 1:
        raise ValueError("a sharded model has real workers only, each a process of its own")
    own = communicator.members[communicator.ranks[0]]
    others = sorted(set(communicator.members) & set(shard_ranks) - {own})
    if others:
        raise ValueError(
            f"process {own} would average its shards with process {others[0]}, which holds other "
            f"parts of the same replica: call distribute with {WORKERS}"
        )


def check_shares(shard_workers: Communicator, num_elements: int, device: torch.device) -> None:
    """Raise `ValueError` where a process of the replica holds nothing to train; collective."""
    own = torch.tensor([[num_elements]], dtype=torch.int64, device=device)
    if (shard_workers.all_gather(own) == 0).any():
        raise ValueError(
            f"{shard_workers.world_size} processes share a replica, and one of them holds no "
            "trainable element of the model: shard it by fewer processes"
        )


def check_replicas(
    communicator: Communicator, units: Sequence[Unit], shard_rank: int, device: torch.device
) -> None:
    """Raise `ValueError` unless all replicas hold the same shards of the same model; collective."""
    layouts = [
        (shard_rank, unit.name, name, layout(parameter))
        for unit in units
        for name, parameter in unit.parameters.items()
    ]
    digest = hashlib.sha256(repr(layouts).encode()).digest()
    own = torch.tensor([list(digest[:16])], dtype=torch.int64, device=device)
    if (communicator.all_gather(own)[0] != own).any():
        raise ValueError(
            "the replicas differ in their models, their units or the order of their shards: build "
            'the same on every process, from one init_device_mesh(..., ("replicate", "shard"))'
        )


def check_options(
    *,
    has_bucket_bytes: bool,
    finds_unused_parameters: bool,
    has_grad_scaler: bool,
    autotunes: bool,
) -> None:
    """Raise `ValueError` for options of `distribute` that a sharded model has no use for."""
    if has_bucket_bytes:
        raise ValueError(
            "bucket_bytes is not for a model that fully_shard has divided: a unit is a bucket, "
            "so call fully_shard with larger or smaller parts"
        )
    if finds_unused_parameters:
        raise ValueError(
            "find_unused_parameters is not supported with fully_shard: a parameter without a "
            "gradient counts as zero"
        )
    if has_grad_scaler:
        raise ValueError(NO_SCALER)
    if autotunes:
        raise ValueError(
            "autotune is not for a model that fully_shard has divided, whose units FSDP2 lays out: "
            "leave it out, and call fully_shard with larger or smaller parts"
        )


def check_no_scaler() -> None:
    """Raise `ValueError` if an optimizer's step runs for an enabled `GradScaler`; call it within
    the step.
    """
    try:
        check_scaler_is_known(None)
    except ValueError:
        raise ValueError(NO_SCALER) from None


def check_dtypes(buckets: Iterable[ShardBucket]) -> None:
    """Raise `ValueError` where a parameter has another type than it had before."""
    for bucket in buckets:
        for shard in bucket.shards:
            if shard.whole.dtype != bucket.gradients.dtype:
                raise ValueError(
                    f"a parameter of shape {tuple(shard.whole.shape)} is {shard.whole.dtype} now "
                    f"and was {bucket.gradients.dtype} when the model was distributed: "
                    "release() the model before it is changed, and distribute() it again"
                )


def check_synchronized(model: nn.Module) -> None:
    """Raise `ValueError` where a step begins and gradients have only accumulated, which the step
    would not see.
    """
    if keeps_whole_gradients(model):
        raise ValueError(
            "gradients were accumulated within no_sync() or set_requires_gradient_sync(False) and "
            "never reduced over the shards, so that the step would leave them out: let the last "
            "micro-batch's backward run outside of no_sync(), or after "
            "set_requires_gradient_sync(True)"
        )


def check_gradients(buckets: Iterable[ShardBucket]) -> None:
    """Raise `ValueError` where a shard has a gradient that is not in its bucket."""
    for bucket in buckets:
        for shard, view in zip(bucket.shards, bucket.gradient_views(), strict=True):
            if shard.grad is not None and shard.grad.data_ptr() != view.data_ptr():
                raise ValueError(
                    f"a parameter of shape {tuple(shard.whole.shape)} has a gradient that no "
                    "replica has heard of: FSDP2 must call the hooks of sharded parameters, as "
                    "that of torch 2.13 does, and nobody may remove them"
                )
