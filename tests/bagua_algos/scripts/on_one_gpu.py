"""Scripts of two workers that share a GPU: `python -m tests.bagua_algos.scripts.on_one_gpu FOLDER 2
BACKEND`, where "none" is `init_process_group()` without one.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import bagua_algos
from bagua_algos import Algorithm, AllReduce, ByteGrad, Decentralized, ProcessGroupCommunicator
from experiments.real.nccl import nccl_environment
from host.processes import fork
from tests.bagua_algos import rows_hierarchical
from tests.bagua_algos.rows import OPTIMIZERS, ROWS, make_optimizer
from tests.bagua_algos.scripts.training import Results, flat

NUM_STEPS = 8
LIMIT = timedelta(seconds=60)
EVERY_ALGORITHM = [name for name in ROWS if name not in rows_hierarchical.ROWS]
FEW = ("all_reduce", "byte_grad", "decentralized")


def make_model() -> nn.Module:
    """Parameters of odd sizes, which begin at any address of a bucket; and buffers."""
    torch.manual_seed(dist.get_rank())
    return nn.Sequential(
        # No bias before BatchNorm: its gradient is rounding alone, which Adam would make steps of.
        *(nn.Linear(5, 33, bias=False), nn.BatchNorm1d(33), nn.Tanh(), nn.Linear(33, 7)),
        *(nn.Tanh(), nn.Linear(7, 3)),
    )


def train(model: nn.Module, optimizer: torch.optim.Optimizer, device: str, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        x_b = torch.randn(16, 5, generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x_b.to(device)), x_b[:, :3].argmax(1).to(device)).backward()
        optimizer.step()


def trained(
    algorithm: Algorithm,
    device: str,
    make: Callable[[nn.Module], torch.optim.Optimizer] = make_optimizer,
    communicator: ProcessGroupCommunicator | None = None,
    compile_: bool = False,
    num_steps: int = NUM_STEPS,
    **options: Any,
) -> Tensor:
    """The consensus' weights `[1, n]`, on the CPU."""
    model = make_model().to(device)
    model, optimizer = bagua_algos.distribute(
        model, make(model), algorithm, communicator, **options
    )
    steps = range(num_steps)
    train(torch.compile(model) if compile_ else model, optimizer, device, steps)  # type: ignore
    with bagua_algos.consensus(model):
        weights = flat(model).cpu()
    bagua_algos.release(model)
    return weights


def algorithms(names: list[str]) -> Results:
    """On the GPU by NCCL, and on the CPU by a group of gloo beside."""
    of_gloo = ProcessGroupCommunicator(dist.new_group(backend="gloo", timeout=LIMIT))
    results: Results = {}
    for name in names:
        make = OPTIMIZERS.get(name, make_optimizer)
        results[f"{name} cuda"] = trained(ROWS[name](), "cuda", make)
        results[f"{name} cpu"] = trained(ROWS[name](), "cpu", make, of_gloo)
    return results


def compiled() -> Results:
    results: Results = {}
    for make in (AllReduce, ByteGrad, Decentralized):
        results[f"{make.__name__} eager"] = trained(make(), "cuda")
        torch.compiler.reset()
        results[f"{make.__name__} compiled"] = trained(make(), "cuda", compile_=True)
    return results


def tuned() -> Results:
    results: Results = {}
    for autotune in (False, True):
        options = {"num_steps": 60, "bucket_bytes": 512, "autotune": autotune}
        results["tuned" if autotune else "plain"] = trained(AllReduce(), "cuda", **options)
    return results


def continued() -> Results:
    """After half of the steps what `state_dict` tells goes through a file to other objects."""
    results: Results = {}
    for is_cut in (False, True):
        model = make_model().to("cuda")
        algorithm = ByteGrad(error_feedback=True)
        model, optimizer = bagua_algos.distribute(model, make_optimizer(model), algorithm)
        train(model, optimizer, "cuda", range(NUM_STEPS // 2))
        if is_cut:
            with tempfile.NamedTemporaryFile() as file:
                states = bagua_algos.state_dict(model), model.state_dict(), optimizer.state_dict()
                torch.save(states, file.name)
                of_algorithm, of_model, of_optimizer = torch.load(file.name, weights_only=True)
            bagua_algos.release(model)
            model = make_model().to("cuda")
            algorithm = ByteGrad(error_feedback=True)
            model, optimizer = bagua_algos.distribute(model, make_optimizer(model), algorithm)
            model.load_state_dict(of_model)
            optimizer.load_state_dict(of_optimizer)
            bagua_algos.load_state_dict(model, of_algorithm)
        train(model, optimizer, "cuda", range(NUM_STEPS // 2, NUM_STEPS))
        results["cut" if is_cut else "whole"] = flat(model).cpu()
        bagua_algos.release(model)
    return results


def refusals() -> Results:
    """The sentences, by what was done."""

    def sentence(model: nn.Module, **options: Any) -> str | None:
        try:
            bagua_algos.distribute(model, make_optimizer(model), AllReduce(), **options)
        except ValueError as error:
            return str(error)
        bagua_algos.release(model)
        return None

    half_way = make_model().to("cuda")
    half_way.get_submodule("1").register_buffer("running_mean", torch.zeros(33))
    return {
        "on the GPU": sentence(make_model().to("cuda")),
        "on the CPU": sentence(make_model()),
        "a buffer on the CPU": sentence(half_way),
        "two streams": sentence(make_model().to("cuda"), streams=2),
    }


def scripts(backend: str) -> dict[str, Results]:
    if backend == "gloo":
        return {"refusals": refusals()}
    if backend != "nccl":
        return {"algorithms": algorithms([*FEW]), "refusals": refusals()}
    return {
        "algorithms": algorithms(EVERY_ALGORITHM),
        "compiled": compiled(),
        "tuned": tuned(),
        "continued": continued(),
        "refusals": refusals(),
    }


def run_worker(rank: int, folder: Path, world_size: int, backend: str) -> int:
    os.environ |= nccl_environment(rank, is_shared=True, interface="lo")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.cuda.set_device(0)
    dist.init_process_group(
        None if backend == "none" else backend,
        init_method=f"file://{folder / 'store'}",
        rank=rank,
        world_size=world_size,
        timeout=LIMIT,
    )
    torch.save(scripts(backend), folder / f"{rank}.pt")
    dist.destroy_process_group()
    return 0


def main(folder: Path, world_size: int, backend: str) -> int:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # workers are forked
    pids = [
        fork(lambda rank=rank: run_worker(rank, folder, world_size, backend))
        for rank in range(world_size)
    ]
    return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
