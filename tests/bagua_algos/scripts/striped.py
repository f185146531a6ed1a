"""Training over several connections between each two workers."""

import torch
from torch import nn

import bagua_algos
from bagua_algos import AllReduce, ByteGrad, Decentralized
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from tests.bagua_algos.scripts.training import Results, flat, loss_of, refusal, sgd

STREAMS = 3


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
            communicator = ProcessGroupCommunicator(streams=number)
            bagua_algos.distribute(model, optimizer, algorithm, communicator)
            for step in range(3):
                optimizer.zero_grad()
                loss_of(model, step).backward()
                optimizer.step()
            bagua_algos.release(model)
            results[f"{type(algorithm).__name__} {number}"] = flat(model)
    results |= _operations()
    results["too many"] = refusal(lambda: ProcessGroupCommunicator(streams=17))
    results["none"] = refusal(lambda: ProcessGroupCommunicator(streams=0))
    return results


def _operations() -> Results:
    workers = ProcessGroupCommunicator(streams=STREAMS).duplicate()
    [rank] = workers.ranks
    x_wN = torch.arange(2 * 40_000.0).view(1, 2, -1) + 1e6 * rank
    x_w = x_wN[:, 0].contiguous()
    broadcast_w = x_w.clone()
    workers.broadcast_(broadcast_w, source=1)
    results = {
        "all_to_all": workers.all_to_all(x_wN),
        "all_gather": workers.all_gather(x_w),
        "exchange": workers.exchange(x_w, (1, 0)),
        "broadcast": broadcast_w,
    }
    workers.close()
    return results
