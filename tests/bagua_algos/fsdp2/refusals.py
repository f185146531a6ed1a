"""What is refused around a sharded model: each case returns the sentence, or "" where nothing was
said.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial, wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

import bagua_algos
from bagua_algos import (
    SGP,
    Algorithm,
    AllReduce,
    AsyncModelAverage,
    ByteGrad,
    LocalSGD,
    PowerSGD,
    TopK,
)
from tests.bagua_algos.fsdp2.net import OWN_UNITS, Net, batch
from tests.bagua_algos.fsdp2.scripts import BF16, sgd
from tests.bagua_algos.fsdp2.sharding import Place, shard


def sharded(place: Place, **options: Any) -> Net:
    model = Net()
    shard(model, place.mesh["shard"], OWN_UNITS, **options)
    return model


def sentence(case: Callable[..., None]) -> Callable[..., str]:
    @wraps(case)
    def caught(*args: Any, **options: Any) -> str:
        try:
            case(*args, **options)
        except ValueError as error:
            return str(error)
        return ""

    return caught


@sentence
def distribute(
    place: Place,
    make: Callable[[Place], nn.Module] = sharded,
    algorithm: Callable[[], Algorithm] = AllReduce,
    **options: Any,
) -> None:
    model = make(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bagua_algos.distribute(model, optimizer, algorithm(), place.replicas, **options)
    bagua_algos.release(model)


@sentence
def another_rate(place: Place, rate: Callable[[Place], float]) -> None:
    model = sharded(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate(place))
    bagua_algos.distribute(model, optimizer, LocalSGD(interval=2), place.replicas)
    bagua_algos.release(model)


@sentence
def everybody(place: Place) -> None:
    model = sharded(place)
    bagua_algos.distribute(model, sgd(model), AllReduce())


def parts_only(place: Place) -> nn.Module:
    model = Net()
    fully_shard(model.mid, mesh=place.mesh["shard"])
    return model


def tensor_parallel(place: Place) -> nn.Module:
    model = nn.Linear(8, 8)
    weight = distribute_tensor(model.weight.detach(), place.mesh["shard"], [Shard(0)])
    model.weight = nn.Parameter(weight)
    return model


def native(place: Place) -> nn.Module:
    model = Net()
    shard(model, place.mesh, OWN_UNITS)
    return model


def ignored(place: Place) -> nn.Module:
    model = Net()
    fully_shard(model, mesh=place.mesh["shard"], ignored_params={model.mid.bias})
    return model


def two_meshes(place: Place) -> nn.Module:
    model = Net()
    fully_shard(model.mid, mesh=init_device_mesh("cpu", (4,)))
    fully_shard(model, mesh=place.mesh["shard"])
    return model


def hooked(place: Place) -> nn.Module:
    model = sharded(place)
    model.stem.set_all_reduce_hook(lambda reduced: None)
    return model


def divided(place: Place, factor: float) -> nn.Module:
    model = sharded(place)
    model.stem.set_gradient_divide_factor(factor)
    return model


def meta(place: Place) -> nn.Module:
    with torch.device("meta"):
        model = nn.Linear(8, 8)
    fully_shard(model, mesh=place.mesh["shard"])
    return model


def compiled(place: Place) -> nn.Module:
    model = torch.compile(sharded(place), backend="eager")
    assert isinstance(model, nn.Module)
    return model


def tiny(place: Place) -> nn.Module:
    model = nn.Linear(8, 1)
    fully_shard(model, mesh=place.mesh["shard"])
    return model


def unlike(place: Place) -> nn.Module:
    model = nn.Linear(8, 8 + 2 * place.replica)
    fully_shard(model, mesh=place.mesh["shard"])
    return model


@sentence
def after(place: Place, change: Callable[[nn.Module, torch.optim.Optimizer], None]) -> None:
    """A change after `distribute`, and a step."""
    model = sharded(place)
    optimizer = sgd(model)
    bagua_algos.distribute(model, optimizer, LocalSGD(), place.replicas)
    try:
        change(model, optimizer)
        x_b, y_b = batch(0, place.replica, place.shard)
        x_b = x_b.to(next(model.parameters()).dtype)
        F.cross_entropy(model(x_b), y_b).backward()
        optimizer.step()
    finally:
        bagua_algos.release(model)


@sentence
def grown(place: Place) -> None:
    """One process of all has another buffer by the time of a consensus."""
    model = sharded(place)
    model.register_buffer("table", torch.zeros(2))
    bagua_algos.distribute(model, sgd(model), LocalSGD(), place.replicas)
    if place.replica == place.shard == 1:
        model.table = torch.zeros(3)
    try:
        with bagua_algos.consensus(model):
            pass
    finally:
        bagua_algos.release(model)


def replace(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.stem.load_state_dict(
        {name: x.clone() for name, x in model.stem.state_dict().items()}, assign=True
    )


def train_elsewhere(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.optim.SGD(model.stem.parameters(), lr=0.1).step()


def forget_hooks(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """As a version of FSDP2 would that does not call them."""
    for parameter in model.parameters():
        (parameter._post_accumulate_grad_hooks or {}).clear()


def load_another_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = bagua_algos.state_dict(model)
    state["of"]["shard"] = [1 - state["of"]["shard"][0], 2]
    bagua_algos.load_state_dict(model, state)


@sentence
def never_reduced(
    place: Place,
    stop: Callable[[Net], AbstractContextManager | None],
    algorithm: Callable[[], Algorithm] = AllReduce,
    **options: Any,
) -> None:
    """A step whose only backward came after `stop`, or within what it has returned."""
    model = sharded(place, **options)
    optimizer = sgd(model)
    bagua_algos.distribute(model, optimizer, algorithm(), place.replicas)
    try:
        with stop(model) or nullcontext():
            model(batch(0, 0, 0)[0]).sum().backward()
        optimizer.step()
    finally:
        bagua_algos.release(model)


def stop_all(model: nn.Module) -> None:
    model.set_requires_gradient_sync(False)


def stop_one(model: nn.Module) -> None:
    model.stem.set_requires_gradient_sync(False)


@sentence
def scaled_step(place: Place) -> None:
    model = sharded(place)
    optimizer = sgd(model)
    bagua_algos.distribute(model, optimizer, ByteGrad(error_feedback=True), place.replicas)
    scaler = torch.amp.GradScaler("cpu")
    try:
        scaler.scale(model(batch(0, 0, 0)[0]).sum()).backward()
        scaler.step(optimizer)
    finally:
        bagua_algos.release(model)


AFTER: dict[str, Callable[[nn.Module, torch.optim.Optimizer], Any]] = {
    "frozen later": lambda model, _: model.stem.requires_grad_(False),
    "replaced later": replace,
    "narrowed later": lambda model, _: model.to(torch.bfloat16),
    "divided later": lambda model, _: model.stem.set_gradient_divide_factor(1.0),
    "another optimizer": train_elsewhere,
    "no hooks": forget_hooks,
    "another's state": load_another_state,
    "distributed twice": lambda model, optimizer: bagua_algos.distribute(
        model, optimizer, AllReduce()
    ),
    "empty_backward": lambda model, _: bagua_algos.empty_backward(model),
}

CASES: dict[str, Callable[[Place], str]] = {
    "nothing": partial(distribute, make=partial(divided, factor=2)),  # as it is anyway
    "everybody": everybody,
    "parts only": partial(distribute, make=parts_only),
    "tensor parallel": partial(distribute, make=tensor_parallel),
    "native": partial(distribute, make=native),
    "ignored": partial(distribute, make=ignored),
    "two meshes": partial(distribute, make=two_meshes),
    "hooked": partial(distribute, make=hooked),
    "divided": partial(distribute, make=partial(divided, factor=1)),
    "offloaded": partial(
        distribute, make=partial(sharded, offload_policy=CPUOffloadPolicy(pin_memory=False))
    ),
    "meta": partial(distribute, make=meta),
    "compiled": partial(distribute, make=compiled),
    "tiny": partial(distribute, make=tiny),
    "unlike": partial(distribute, make=unlike),
    "a replica's rate": partial(another_rate, rate=lambda place: 0.1 * (1 + place.replica)),
    "a shard's rate": partial(another_rate, rate=lambda place: 0.1 * (1 + place.shard)),
    "a process's rate": partial(
        another_rate, rate=lambda place: 0.1 * (1 + place.replica * place.shard)
    ),
    "power_sgd": partial(distribute, algorithm=PowerSGD),
    "top_k": partial(distribute, algorithm=lambda: TopK(clip_norm=1.0)),
    "async": partial(distribute, algorithm=AsyncModelAverage),
    "bucket_bytes": partial(distribute, bucket_bytes=1 << 20),
    "unused": partial(distribute, find_unused_parameters=True),
    "scaler": partial(distribute, grad_scaler=torch.amp.GradScaler("cpu")),
    "scaler of a step": scaled_step,
    "no backward without no_sync": partial(never_reduced, stop=bagua_algos.no_sync),
    "no_sync by itself": partial(never_reduced, stop=bagua_algos.no_sync, algorithm=SGP),
    "never reduced": partial(never_reduced, stop=stop_all),
    "never reduced, local SGD": partial(never_reduced, stop=stop_all, algorithm=LocalSGD),
    "never reduced, in bfloat16": partial(never_reduced, stop=stop_all, mp_policy=BF16),
    "grown buffer": grown,
    "one unit never reduced": partial(never_reduced, stop=stop_one),
    **{name: partial(after, change=change) for name, change in AFTER.items()},
}
