"""What a step of a small GPT costs on real workers: `python -m experiments.bench_algorithms --gpt`.

Two gloo workers on this host, nothing shaped. Every algorithm, and PyTorch's own, trains a model
of its own; they take steps in turn, so that what disturbs the host disturbs all alike. The
optimizer is the example's AdamW, where the algorithm does not choose another; `distribute` fuses
it, as it does in a script. PyTorch's DDP has it as the script has it, and in a second row by
torch's own `fused=True`. All-reduces are those that a script gets by `distribute`: through memory
that the workers share; one row more has all-reduce over gloo, as PyTorch's.

Four models are not distributed, and step by a fused optimizer, too. One sends nothing: no
algorithm can take less. One averages a number after each backward pass: it waits for the slowest
worker, so no synchronous algorithm can take less. One averages as many numbers as the model has,
in one flat tensor that has nothing to do with its gradients: that is all-reduce without hooks,
copies and overlap, over gloo and through shared memory. Prints medians of milliseconds with their
quartiles, and never judges.
"""

import runpy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.table import Table
from torch import Tensor, nn

from bagua_algos.communication.communicator import Communicator
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.communication.rendezvous import file_rendezvous
from bagua_algos.fused.fuse import fuse_optimizer
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.messages import choices
from experiments.plan.plan import Plan
from experiments.training.distributed import Distributed, distribute
from experiments.training.step import make_scaler
from host.command_line.console import Console
from host.conf import checkout
from host.environment import environment
from host.forks.child import run_in_child_reporting
from host.processes import fork, kill
from host.words import counted

WORKERS = 2
BASELINE = "torch_ddp"
BASELINE_FUSED = "torch_ddp, fused=True"
ALONE = "no communication"
ONE_NUMBER = "one number averaged a step"
ONE_TENSOR = "one flat tensor averaged a step"
ONE_TENSOR_SHARED = f"{ONE_TENSOR}, through shared memory"
NOT_DISTRIBUTED = (ALONE, ONE_NUMBER, ONE_TENSOR, ONE_TENSOR_SHARED)
OURS = "allreduce"
OURS_OVER_GLOO = f"{OURS}, shared_memory=False"
EXAMPLE = "gpt.py"
OPTIMIZER = ("optim=adamw", "optim.lr=2e-3")  # the example's
TIMEOUT_S = 120
WARM_UP_ROUNDS = 8


def measure(num_rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each of `num_rounds` steps by each algorithm, and alone, on worker 0.

    Raises `RuntimeError` where a worker fails; it prints why.
    """
    plans = {name: _plan(name) for name in choices("algo")}
    plans |= dict.fromkeys(NOT_DISTRIBUTED, plans[BASELINE])
    plans[BASELINE_FUSED] = _plan(BASELINE, "+optim.fused=true")
    plans[OURS_OVER_GLOO] = plans[OURS]
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "workers")

        def work(rank: int) -> dict[str, list[float]]:
            torch.set_num_threads(1)
            with file_rendezvous(
                path, backend="gloo", rank=rank, world_size=WORKERS, timeout_s=TIMEOUT_S
            ) as communicator:
                return _take_turns(plans, communicator, num_rounds)

        others = [fork(lambda rank=rank: 0 if work(rank) else 1) for rank in range(1, WORKERS)]
        try:
            return run_in_child_reporting(lambda _: work(0), lambda _: None)
        finally:
            for pid in others:
                kill(pid)


def print_table(times_ms: dict[str, list[float]]) -> None:
    """Median and quartiles of each algorithm, and its median as a share of the baseline's."""
    host = environment()
    table = Table(
        title=f"a step of {EXAMPLE} on {WORKERS} gloo workers, nothing shaped",
        caption=f"{host['cpu']}, {counted(host['cores'], 'core')}, one thread a worker, torch "
        f"{host['packages']['torch']}, {len(times_ms[BASELINE])} steps each, in turn",
    )
    columns = ("algorithm", "ms a step", "25 %", "75 %", f"of {BASELINE}'s time")
    for heading in columns:
        table.add_column(heading, justify="left" if heading == "algorithm" else "right")
    medians = {name: statistics.median(values) for name, values in times_ms.items()}
    for name in sorted(medians, key=lambda name: medians[name]):
        low, _, high = statistics.quantiles(times_ms[name], n=4)
        share = medians[name] / medians[BASELINE]
        table.add_row(name, f"{medians[name]:.2f}", f"{low:.2f}", f"{high:.2f}", f"{share:.2f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _plan(name: str, *more: str) -> Plan:
    words = [f"algo={name}", "model=mlp", f"workers={WORKERS}", "max_steps=1000"]
    config = compose_config(words)
    if (
        config.optim == compose_config(["algo=allreduce"]).optim
    ):  # the algorithm does not choose one
        config = compose_config([*words, *OPTIMIZER, *more])
    for key in ("warmup_steps", "start_step"):
        if key in config.algo:
            config.algo[key] = min(config.algo[key], WARM_UP_ROUNDS // 2)
    return make_plan(config, Path(tempfile.gettempdir()))


def _take_turns(
    plans: dict[str, Plan], communicator: ProcessGroupCommunicator, num_rounds: int
) -> dict[str, list[float]]:
    example = runpy.run_path(str(checkout("the bench") / "examples" / EXAMPLE))
    text, _, vocabulary = example["read_text"]()
    as_scripts = communicator.with_transport(shared_memory=None)
    sharing = as_scripts.duplicate()
    engines: list[Distributed] = []
    steps: dict[str, Callable[[], None]] = {}
    for name, plan in plans.items():
        torch.manual_seed(0)
        model = example["GPT"](vocabulary)
        optimizer = plan.make_optimizer(model.parameters())
        if name in NOT_DISTRIBUTED:
            optimizer = fuse_optimizer(optimizer)
        else:
            workers = communicator if name == OURS_OVER_GLOO else as_scripts
            engine = distribute(plan, model, optimizer, workers, make_scaler(plan))
            engines.append(engine)
            model = engine.model

        averaged = _averaged_beside(name, model)

        def step(
            model: nn.Module = model,
            optimizer: torch.optim.Optimizer = optimizer,
            averaged: Tensor | None = averaged,
            workers: Communicator = sharing if name == ONE_TENSOR_SHARED else communicator,
        ) -> None:
            generator = torch.Generator().manual_seed(communicator.ranks[0])
            optimizer.zero_grad()
            example["loss_of"](model, text, example["BATCH"], generator).backward()
            if averaged is not None:
                workers.all_reduce_mean_(averaged)
            optimizer.step()

        steps[name] = step
    times_ms: dict[str, list[float]] = {name: [] for name in plans}
    for index in range(WARM_UP_ROUNDS + num_rounds):
        for name in _rotated(list(steps), index):  # what comes first finds other things in caches
            communicator.all_reduce_mean_(torch.zeros(1, 1))  # all begin together
            started_s = time.perf_counter()
            steps[name]()
            if index >= WARM_UP_ROUNDS:
                times_ms[name].append(1e3 * (time.perf_counter() - started_s))
    for engine in engines:
        engine.pause()
        engine.close()
    return times_ms


def _averaged_beside(name: str, model: nn.Module) -> Tensor | None:
    """[1, numbers]: what a model that is not distributed averages at each step."""
    if name == ONE_NUMBER:
        return torch.zeros(1, 1)
    if name in (ONE_TENSOR, ONE_TENSOR_SHARED):
        return torch.zeros(1, sum(weight.numel() for weight in model.parameters()))
    return None


def _rotated(names: list[str], by: int) -> list[str]:
    first = by % len(names)
    return names[first:] + names[:first]
