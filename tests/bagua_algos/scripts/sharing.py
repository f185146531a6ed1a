"""Which all-reduces of a script go through memory that its workers share."""

import gc
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import bagua_algos
from bagua_algos import AllReduce, ProcessGroupCommunicator
from bagua_algos.communication.connections import joining
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.distribute import _engine
from tests.bagua_algos.scripts.training import (
    Results,
    flat,
    loss_of,
    make_model,
    refusal,
    sgd,
    train,
)


def shared_memory() -> Results:
    """By default, and by every switch; what is held afterwards; and where memory is missing."""
    results: Results = {"held": [held()]}
    for name, options in {
        "default": {},
        "True": {"shared_memory": True},
        "False": {"shared_memory": False},
        "streams": {"streams": 2},
        "streams and True": {"streams": 2, "shared_memory": True},
        "pattern": {"pattern": "ring"},
        "a communicator": {"communicator": ProcessGroupCommunicator()},
        "a communicator and True": {
            "communicator": ProcessGroupCommunicator(),
            "shared_memory": True,
        },
        "autotune": {"autotune": True},
        "buckets": {"bucket_bytes": 100},
    }.items():
        results[name] = _trained(**options)
    results["held"].append(held())
    results["contradiction"] = refusal(lambda: _trained(pattern="direct", shared_memory=True))
    results["elsewhere"] = refusal(
        lambda: bagua_algos.distribute(
            (meta := make_model().to("meta")), sgd(meta), AllReduce(), shared_memory=True
        )
    )
    stacked = StackedCommunicator(1)
    results["stacked"] = refusal(lambda: _trained(communicator=stacked, shared_memory=True))
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:
            patch.setattr(joining.os, "memfd_create", _no_memory)
        results["required"] = refusal(lambda: _trained(shared_memory=True))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            results["without memory"] = _trained()
        results["warnings"] = [str(one.message) for one in caught]
    results["silent"] = _silent()
    _dropped()
    gc.collect()
    results["held"].append(held())
    return results


def held() -> int:
    """Mappings of shared memory in this process."""
    return Path("/proc/self/maps").read_text().count("memfd:relaxlab")


def _trained(**options: Any) -> tuple[bool, torch.Tensor]:
    model = make_model()
    model, optimizer = bagua_algos.distribute(model, sgd(model), AllReduce(), **options)
    shares = _engine(model).context.communicator.shares_memory
    train(model, optimizer)
    bagua_algos.release(model)
    return shares, flat(model)


def _silent() -> str:
    """What worker 0 is told where worker 1 takes no step."""
    told, model = "", make_model()
    bagua_algos.distribute(model, sgd(model), AllReduce(), timeout_s=1)
    if dist.get_rank() == 0:
        try:
            loss_of(model, 0).backward()
        except bagua_algos.CommunicationError as error:
            told = str(error)
    ProcessGroupCommunicator().all_gather(torch.zeros(1, 1))  # worker 1 stays until then
    return told


def _dropped() -> None:
    model = make_model()
    bagua_algos.distribute(model, sgd(model), AllReduce())
    assert held() > 0


def _no_memory(name: str) -> int:
    raise OSError(12, "Cannot allocate memory")
