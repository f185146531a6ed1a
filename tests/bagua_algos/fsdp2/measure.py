"""What sharded replicas send each other, and how long a step takes, on 4 processes in two
namespaces, one for each replica; a Markdown table.

    python -m netsim serve net=slow_tcp workers=2 -- tests/bagua_algos/fsdp2/measure.sh
    torchrun --nproc-per-node 4 -m tests.bagua_algos.fsdp2.measure       # unshaped, bytes unknown

Algorithms run in turn, round after round. Bytes are those that the first replica's interface has
sent; seconds are the median and the range of the rounds.
"""

import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import bagua_algos
from bagua_algos import Algorithm
from bagua_algos.compressors import SignScale
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from bagua_algos.outer_optimizer import Nesterov
from netsim.links.counters import bytes_sent

INTERFACE = "eth0"

WIDTH, DEPTH, BATCH = 512, 6, 32
INTERVAL = 8
NUM_WARMUPS, NUM_STEPS, NUM_ROUNDS = INTERVAL, 2 * INTERVAL, 3

WAYS: dict[str, Callable[[], Algorithm] | None] = {
    "native HSDP": None,
    "`AllReduce()`": bagua_algos.AllReduce,
    '`AllReduce(wire="bf16")`': lambda: bagua_algos.AllReduce(wire="bf16"),
    "`ByteGrad()`": bagua_algos.ByteGrad,
    "EF-SignSGD": lambda: bagua_algos.CompressedAllReduce(
        compressor=SignScale(), error_feedback=True
    ),
    "`Decentralized()`": bagua_algos.Decentralized,
    "`LocalSGD(interval=8)`": lambda: bagua_algos.LocalSGD(interval=INTERVAL),
    "DiLoCo, 8 steps, int8": lambda: bagua_algos.LocalSGD(
        interval=INTERVAL, outer=Nesterov(), compressor=MinMaxUInt8()
    ),
}


class Training:
    """A model of 1.6 M parameters in 6 units, in training one way."""

    def __init__(self, make: Callable[[], Algorithm] | None, mesh: DeviceMesh) -> None:
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(DEPTH)]
        self.model = nn.Sequential(*layers)
        for module in [*layers, self.model]:
            fully_shard(module, mesh=mesh if make is None else mesh["shard"])
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        if make is not None:
            replicas = bagua_algos.ProcessGroupCommunicator(mesh["replicate"].get_group())
            bagua_algos.distribute(self.model, self.optimizer, make(), replicas)

    def run(self, num_steps: int) -> float:
        """Seconds a step."""
        dist.barrier()
        started_s = time.perf_counter()
        for _ in range(num_steps):
            x_b = torch.randn(BATCH, WIDTH)
            self.optimizer.zero_grad()
            F.mse_loss(self.model(x_b), x_b).backward()
            self.optimizer.step()
        dist.barrier()
        return (time.perf_counter() - started_s) / num_steps


def num_bytes_sent() -> int:
    """By the interface of this process's namespace; 0 where it is not one of `netsim serve`."""
    return bytes_sent() if os.environ.get("GLOO_SOCKET_IFNAME") == INTERFACE else 0


def main() -> None:
    """Measure, and print on the first process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    trainings = {name: Training(make, mesh) for name, make in WAYS.items()}
    for training in trainings.values():
        training.run(NUM_WARMUPS)
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    sent = dict.fromkeys(WAYS, 0)
    for _ in range(NUM_ROUNDS):
        for name, training in trainings.items():
            before = num_bytes_sent()
            seconds[name].append(training.run(NUM_STEPS))
            sent[name] += num_bytes_sent() - before
    if dist.get_rank() == 0:
        print("| replicas | MB a replica sends a step | ms a step | range |")
        print("| --- | ---: | ---: | ---: |")
        for name, own in seconds.items():
            megabytes = sent[name] / (NUM_ROUNDS * NUM_STEPS) / 1e6
            middle, low, high = (1e3 * f(own) for f in (statistics.median, min, max))
            print(f"| {name} | {megabytes:.2f} | {middle:.0f} | {low:.0f} to {high:.0f} |")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
