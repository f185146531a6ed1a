"""Training over several connections between each two workers."""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

import bagua_algos
from bagua_algos import AllReduce, ByteGrad, CommunicationError, Decentralized
from bagua_algos.communication.communicator import Communicator
from bagua_algos.communication.patterns import with_pattern
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.communication.streams import with_streams
from bagua_algos.communication.stripes import Stripes
from experiments.training.torch_ddp import DistributedTorchDDP, TorchDDP
from tests.bagua_algos.scripts.training import Results, flat, loss_of, refusal, sgd

STREAMS = 3
DEAD_S = 5.0
"""How long a worker waits for another one on a stream that is dead, seconds."""


def make_wide() -> nn.Module:
    """Buckets of some 100 kB, which are worth several parts."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 3001), nn.Tanh(), nn.Linear(3001, 3))


def streams() -> Results:
    """By one stream and by several; and what each operation moves by several."""
    results: Results = {}
    for algorithm in (AllReduce(), ByteGrad(), Decentralized()):
        for number in (1, STREAMS):
            model = make_wide()
            optimizer = sgd(model)
            bagua_algos.distribute(model, optimizer, algorithm, streams=number)
            _train(model, optimizer)
            bagua_algos.release(model)
            results[f"{type(algorithm).__name__} {number}"] = flat(model)
    for number in (1, STREAMS):
        results[f"TorchDDP {number}"] = _by_torch_ddp(number)
    workers = ProcessGroupCommunicator(streams=STREAMS).duplicate()
    results |= _operations(workers)
    workers.close()
    results["too many"] = refusal(lambda: ProcessGroupCommunicator(streams=17))
    results["none"] = refusal(lambda: ProcessGroupCommunicator(streams=0))
    for name, wrong in (("word", "many"), ("fraction", 2.5), ("truth", True)):
        results[name] = refusal(lambda wrong=wrong: with_streams(workers, wrong))
    results["stacked"] = refusal(lambda: with_streams(StackedCommunicator(2), 4))
    return results


def measured_streams() -> Results:
    """How many are chosen, what operations move over them, and what stays open."""
    communicator, trial = with_streams(ProcessGroupCommunicator(), "auto")
    assert trial is not None
    several = ProcessGroupCommunicator(streams=max(2, trial.streams)).duplicate()
    results = {"trial": asdict(trial), "streams": communicator.streams} | _operations(several)
    several.close()
    held = []
    for _ in range(3):
        model = make_wide()
        bagua_algos.distribute(model, sgd(model), AllReduce(), streams="auto")
        bagua_algos.release(model)
        held.append((len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))))
    return results | {"held": held}


def dead_stream() -> Results:
    """Worker 1 takes no part in the second of three streams: what worker 0 is told. It begins all
    operations at once, so that it waits for the limit once.
    """
    operations = ("all_reduce_mean", "exchange", "all_to_all", "all_gather", "broadcast")
    alone = ProcessGroupCommunicator(timeout=timedelta(seconds=DEAD_S), streams=STREAMS)
    duplicates = [alone.duplicate() for _ in operations]
    told: Results = {}
    if alone.ranks[0] == 0:
        with ThreadPoolExecutor(len(operations)) as threads:
            told = dict(zip(operations, threads.map(_told, operations, duplicates), strict=True))
    else:
        for operation, workers in zip(operations, duplicates, strict=True):
            for stream in (0, 2):
                _take_part(operation, stream, workers.stripes.groups[stream])
    ProcessGroupCommunicator().all_gather(torch.zeros(1, 1))  # else one might be gone too soon
    return told


def _told(operation: str, workers: Communicator) -> str:
    """Worker 0's part of an operation of two workers: how it fails."""
    x_w = torch.zeros(1, 3 << 12)
    try:
        match operation:
            case "all_reduce_mean":
                workers.all_reduce_mean_(x_w)
            case "exchange":
                workers.exchange(x_w, (1, 0))
            case "all_to_all":
                workers.all_to_all(torch.stack([x_w, x_w], 1))
            case "all_gather":
                workers.all_gather(x_w)
            case "broadcast":
                workers.broadcast_(x_w, source=1)
    except CommunicationError as error:
        return str(error)
    return "nothing"


def _take_part(operation: str, stream: int, group: dist.ProcessGroup | None) -> None:
    """Worker 1's part of an operation of two workers, on one of its streams."""
    part, alive = torch.zeros(1, 3 << 12).view(-1).tensor_split(STREAMS)[stream], Stripes([group])
    match operation:
        case "all_reduce_mean":
            alive.all_reduce_(part)
        case "exchange" | "all_to_all":
            alive.send_and_receive({0: part}, {0: part.clone()})
        case "all_gather":
            dist.all_gather([part.clone(), part.clone()], part, group=group)
        case "broadcast":
            alive.broadcast_(part, source=1)


def _train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def _by_torch_ddp(number: int) -> torch.Tensor:
    model = make_wide()
    optimizer = sgd(model)
    communicator, _ = with_streams(ProcessGroupCommunicator(), number)
    distributed = DistributedTorchDDP(model, optimizer, TorchDDP(), communicator)
    _train(distributed.model, optimizer)
    distributed.close()
    return flat(model)


def _operations(workers: Communicator) -> Results:
    [rank] = workers.ranks
    x_wN = torch.arange(2 * 40_000.0).view(1, 2, -1) + 1e6 * rank
    x_w = x_wN[:, 0].contiguous()
    broadcast_w = x_w.clone()
    workers.broadcast_(broadcast_w, source=1)
    return {
        "all_to_all": workers.all_to_all(x_wN),
        "all_gather": workers.all_gather(x_w),
        "exchange": workers.exchange(x_w, (1, 0)),
        "broadcast": broadcast_w,
    }


def patterns() -> Results:
    """All-reduces by either pattern and by several streams, and training by each."""
    results: Results = {}
    x_w = torch.linspace(-1, 1, 3 * 20_001).view(1, 3, -1) ** 3 + dist.get_rank()
    for pattern in ("ring", "halving_doubling", "auto"):
        for number in (1, STREAMS):
            communicator, _ = with_streams(ProcessGroupCommunicator(), number)
            communicator, _ = with_pattern(communicator, pattern)
            workers = communicator.duplicate()
            mean_w = x_w.clone()
            workers.all_reduce_mean_(mean_w)
            workers.close()
            results[f"{pattern} {number}"] = mean_w
        model = make_wide()
        optimizer = sgd(model)
        bagua_algos.distribute(model, optimizer, AllReduce(), pattern=pattern)
        _train(model, optimizer)
        bagua_algos.release(model)
        results[f"trained {pattern}"] = flat(model)
    results["wrong"] = refusal(lambda: with_pattern(ProcessGroupCommunicator(), "tree"))
    stacked = StackedCommunicator(2)
    results["stacked"] = refusal(lambda: with_pattern(stacked, "halving_doubling"))
    return results
