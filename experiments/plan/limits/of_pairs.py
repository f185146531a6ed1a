"""Which settings of a run do not go together, each right by itself.

`run` is a plan, or the configuration that one is made of: they have fields of the same names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

UNKNOWN = "unknown"
"""The process group of backend=auto, before anybody has looked for GPUs."""

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What other settings must fit, of a run's parts.

    Args:
        process_group: "gloo", "nccl", `UNKNOWN`, or None: workers are simulated.
        has_nodes: of the network.
        has_weights: whether workers' losses count by the sizes of their shares.
        needs_nodes, is_simulatable, is_resumable, may_have_streams, uses_background, workers_agree:
            of the algorithm, as `bagua_algos.Algorithm` has them.
    """

    process_group: str | None
    has_nodes: bool
    has_weights: bool
    needs_nodes: bool = False
    is_simulatable: bool = True
    is_resumable: bool = True
    may_have_streams: bool = True
    uses_background: bool = False
    workers_agree: bool = True


_DEVICE_OF: Mapping[str | None, str] = {"gloo": "cpu", "nccl": "cuda"}
"""Simulated workers are on either."""


def check_device(process_group: str | None, device: str) -> None:
    """Raise `ValueError` for a device that `process_group` does not serve."""
    needed = _DEVICE_OF.get(process_group, device)
    if device != needed:
        raise ValueError(
            f"device={device} is not where {process_group} moves tensors, which is "
            f"{needed}: take backend=nccl for real workers on GPUs, backend=gloo on CPUs"
        )


def check_workers(run: Any, parts: Parts) -> None:
    """Raise `ValueError` for what real workers, or simulated ones, do not have."""
    if parts.process_group is None:
        _check_simulated(run)
    elif parts.process_group != UNKNOWN:
        _check_real(run)
        if parts.process_group == "nccl":
            _check_nccl(run)
    plugin = getattr(run.cluster, "net_plugin", None)
    if plugin is not None and parts.process_group not in ("nccl", UNKNOWN):
        raise ValueError(
            f"cluster.net_plugin={plugin} is NCCL's: leave "
            "cluster.net_plugin=null, or take backend=nccl"
        )
    if parts.has_weights and run.clip_norm is not None:
        raise ValueError(
            "data.sizes=unequal weighs the workers' gradients, which clip_norm would undo: "
            "take data.sizes=equal, or clip_norm=null"
        )


def check_algorithm(run: Any, parts: Parts) -> None:
    """Raise `ValueError` for settings that the algorithm does not have."""
    name = run.names["algo"]
    if parts.has_weights and not parts.workers_agree:
        raise ValueError(
            f"data.sizes=unequal: {name} averages models, in which a worker with few examples "
            "would count as much as one with many: take data.sizes=equal, or an algorithm that "
            "averages gradients, such as algo=allreduce"
        )
    if not parts.is_resumable and (run.checkpoint_every or run.resume):
        raise ValueError(
            f"{name}: PyTorch does not save the state of its hook, so the run cannot be resumed: "
            "leave checkpoint_every=0"
        )
    if parts.needs_nodes and not parts.has_nodes:
        raise ValueError(
            "algo.hierarchical=true needs a network with nodes: choose net=two_sites, or "
            "algo.hierarchical=false"
        )
    if parts.process_group is None and parts.uses_background and run.precision == "float16":
        # Workers that wait for nobody leave out steps of their own; simulated ones have one scaler.
        raise ValueError(
            f"{name} with precision=float16 leaves out steps of each worker's own, those whose "
            "gradients overflow, which simulated workers cannot: take precision=bfloat16, or "
            "backend=gloo"
        )
    if not parts.is_simulatable:
        _check_own_code_of_torch(name, run, parts)
    if run.streams != 1 and not parts.may_have_streams:
        raise ValueError(
            f"{name}: PyTorch's hooks have one stream: leave streams=1, or take algo=torch_ddp"
        )


def _check_own_code_of_torch(name: str, run: Any, parts: Parts) -> None:
    what = f"{name} is PyTorch's own code"
    if parts.process_group is None:
        raise ValueError(f"{what}, which needs real workers: take backend=gloo, or algo=allreduce")
    if run.pattern != "ring":
        raise ValueError(
            f"{what}, whose all-reduces are gloo's: leave pattern=ring, or take algo=allreduce"
        )
    if run.pieces:
        raise ValueError(
            f"{what}, whose all-reduces are gloo's: leave pieces=null, or take algo=allreduce "
            "pattern=direct"
        )
    if run.autotune:
        raise ValueError(
            f"{what}, which makes its own buckets: leave autotune=false, or take algo=allreduce"
        )


def _check_simulated(run: Any) -> None:
    if AUTO in (run.streams, run.pattern):
        name = "streams" if run.streams == AUTO else "pattern"
        example = "streams=8" if run.streams == AUTO else "pattern=halving_doubling"
        raise ValueError(
            f"{name}=auto is measured between real workers: say which simulated ones have, "
            f"such as {example}, or take backend=gloo"
        )
    if run.pieces:
        raise ValueError(
            "pieces=true is of real workers, simulated ones send equal parts: leave "
            "pieces=null, or take backend=gloo"
        )
    if run.pattern == "direct":
        raise ValueError(
            "pattern=direct is of real workers, simulated ones have ring and halving_doubling: "
            "choose one of these, or take backend=gloo"
        )
    if run.autotune:
        raise ValueError(
            "autotune=true measures real workers' steps: leave it out, or take backend=gloo"
        )


def _check_real(run: Any) -> None:
    """They are as fast as they are."""
    straggler = getattr(run.cluster, "straggler", 0)  # a configuration may lack it
    if straggler:
        raise ValueError(
            f"cluster.straggler={straggler:g} is of simulated workers: leave "
            "cluster.straggler=0, or take backend=sim"
        )
    if getattr(run.cluster, "jitter", None) is not None:
        raise ValueError(
            "cluster.jitter is of simulated workers: leave cluster.jitter=null, or take backend=sim"
        )
    sharing = getattr(run.cluster, "sharing", 1)
    if sharing not in (1, run.workers):  # all of them share a host, as simulated ones beside may
        raise ValueError(
            f"cluster.sharing={sharing} is of simulated workers: leave cluster.sharing=1, or take "
            "backend=sim"
        )
    stacking = getattr(run.cluster, "stacking", AUTO)
    if stacking != AUTO:
        raise ValueError(
            f"cluster.stacking={stacking} is of simulated workers: leave cluster.stacking=auto, or "
            "take backend=sim"
        )


def _check_nccl(run: Any) -> None:
    if run.streams != 1:
        raise ValueError(
            f"streams={run.streams} are gloo's: leave streams=1, or take backend=gloo; "
            "NCCL opens several sockets itself"
        )
    if run.pattern != "ring":
        raise ValueError(
            f"pattern={run.pattern} is gloo's: leave pattern=ring, or take backend=gloo; "
            "NCCL chooses its own patterns"
        )
