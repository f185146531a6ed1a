"""Would `torch.compile` or bfloat16 make simulated workers faster?
`python -m experiments.bench_simulation --compiled`.

Forward and backward of stacked workers by `vmap`: as runs compute them, compiled, in bfloat16, and
both, in turn. Compiling comes first, and its seconds are printed apart.
"""

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.stacking import Stacking
from experiments.plan.plan import Plan
from experiments.tasks.base import Batch, TaskData
from experiments.training.step import examples, losses
from experiments.validation.bench_simulation import Case, plan_of, print_ratios, timed
from host.cores import usable_cores

EAGER = "as it is"

Losses = Callable[[Plan, nn.Module, Batch], Tensor]


def compare_compiled(case: Case, repeats: int) -> None:
    """Prints what compiling took, ms of a forward and backward pass by each, and the ratios of `as
    it is` to each, round by round.
    """
    plan = plan_of(case.words, case.workers, case.batch_size)
    data = plan.task.load()
    in_bfloat16 = replace(plan, precision="bfloat16")
    passes = {
        EAGER: _passes(plan, data),
        "compiled": _passes(plan, data, _compiled),
        "bfloat16": _passes(in_bfloat16, data),
        "bfloat16, compiled": _passes(in_bfloat16, data, _compiled),
    }
    for name, once in passes.items():
        started_s = time.perf_counter()
        once(0)
        print(f"{case}: first pass, {name}: {time.perf_counter() - started_s:.1f} s", flush=True)
    print_ratios(f"{case}: forward and backward", timed(passes, repeats), EAGER)


def _passes(
    plan: Plan, data: TaskData, how: Callable[[Losses], Losses] = lambda losses: losses
) -> Callable[[int], None]:
    model = StackedModel(plan.model, plan.workers, stacking=Stacking(threads=usable_cores()))
    batches = plan.batches(data, tuple(range(plan.workers)))
    compute = how(losses)

    def once(number: int) -> None:
        torch.set_num_threads(usable_cores())
        batch = examples(plan, data.train, batches.indices(number))
        compute(plan, model, batch).sum().backward()
        model.zero_grad(set_to_none=True)

    return once


def _compiled(compute: Losses) -> Losses:
    return torch.compile(compute)
