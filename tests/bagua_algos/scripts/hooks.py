"""Scripts with hooks of their own on gradients, and scripts whose workers go apart."""

import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

import bagua_algos
from bagua_algos import AllReduce, LocalSGD
from tests.bagua_algos.scripts.training import (
    Results,
    all_reduced,
    ddp_weights,
    distributed,
    flat,
    loss_of,
    make_model,
    refusal,
    sgd,
    train,
)

LIMIT = 0.01


def clip_in_place(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.clamp_(-LIMIT, LIMIT)


def clip_a_copy(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad = parameter.grad.clamp(-LIMIT, LIMIT)


def add_hooks(model: nn.Module, hook: Callable[[Tensor], None]) -> None:
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(hook)


def in_order(hook: Callable[[Tensor], None], algorithm, *, is_first: bool):
    """A model that has had the hook before `distribute`, or got it afterwards."""
    model = make_model()
    if is_first:
        add_hooks(model, hook)
    model, optimizer = distributed(algorithm, sgd, model)
    if not is_first:
        add_hooks(model, hook)
    return model, optimizer


def gradient_hooks() -> Results:
    """Every element of a worker's own gradient is clipped, by a hook before ours or after it."""
    results: Results = {}
    for hook in (clip_in_place, clip_a_copy):
        for is_first in (True, False):
            model, optimizer = in_order(hook, AllReduce(), is_first=is_first)
            train(model, optimizer)
            bagua_algos.release(model)
            results[f"{hook.__name__} {is_first}"] = flat(model)
    results["expected"] = _clipped_by_hand()
    return results


def _clipped_by_hand() -> Tensor:
    model = make_model()
    optimizer = sgd(model)
    for step in range(6):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad.clamp_(-LIMIT, LIMIT))
            parameter.grad /= dist.get_world_size()
        optimizer.step()
    return flat(model)


def optimizer_in_backward() -> Results:
    """An optimizer a parameter, stepped by hooks; and the same by hand."""

    def step_of(optimizers: dict[Tensor, torch.optim.Optimizer]) -> Callable[[Tensor], None]:
        def step_and_drop(parameter: Tensor) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        return step_and_drop

    def by_hand(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.data.add_(parameter.grad, alpha=-0.1)
        parameter.grad = None

    def in_place(parameter: Tensor) -> None:
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=0.1)

    results: Results = {}
    for algorithm in (AllReduce(), LocalSGD(interval=2)):
        for is_first in (True, False):
            optimizers: dict[Tensor, torch.optim.Optimizer] = {}
            hooks = {
                "optimizers": step_of(optimizers),
                "by hand": by_hand,
                "in place": in_place,
            }
            for name, hook in hooks.items():
                model, _ = in_order(hook, algorithm, is_first=is_first)
                optimizers.update({p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()})
                case = f"{type(algorithm).__name__} {name} {is_first}"
                results[case] = refusal(lambda m=model: loss_of(m, 0).backward())
                bagua_algos.release(model)
    return results


def one_releases() -> Results:
    """Worker 1 releases its models; worker 0 has caught an error and only begins anew."""
    for _ in range(2):
        model, optimizer = all_reduced(make_model())
        train(model, optimizer)
        if dist.get_rank() == 1:
            bagua_algos.release(model)
    model, optimizer = all_reduced(make_model())
    train(model, optimizer)
    bagua_algos.release(model)
    return {"ours": flat(model), "expected": ddp_weights()}


def apart() -> Results:
    """Worker 1 changes a weight by hand, under an algorithm that keeps weights equal."""
    model, optimizer = all_reduced(make_model())
    train(model, optimizer)
    results: Results = {}
    for name in ("equal", "apart"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with bagua_algos.consensus(model) as spread:
                results[f"{name} within"] = flat(model)
        results[name] = spread, [str(warning.message) for warning in caught]
        results[f"{name} own"] = flat(model)
        with torch.no_grad():
            model[0].weight[0, 0] += dist.get_rank()
    bagua_algos.release(model)
    return results
