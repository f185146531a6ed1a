"""What a script distributes, adds later, wraps and resumes."""

import copy
import gc
import io
import threading
import weakref

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import bagua_algos
from bagua_algos import SGP, Algorithm, AllReduce, LocalSGD, PowerSGD, TopK
from tests.bagua_algos.scripts.training import (
    ALGORITHMS,
    NUM_STEPS,
    MakeOptimizer,
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


def more_parameters() -> Results:
    """A new module, a second optimizer, a replaced parameter."""
    results: Results = {}

    def take_step(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
        loss_of(model, 0).backward()
        for optimizer in optimizers:
            optimizer.step()

    for algorithm in (AllReduce(), LocalSGD(interval=1)):
        name = type(algorithm).__name__
        model, optimizer = distributed(algorithm, sgd, make_model())
        model.append(nn.Linear(3, 3))
        optimizer.add_param_group({"params": list(model[3].parameters())})
        results[f"{name} new module"] = refusal(lambda m=model, o=optimizer: take_step(m, o))
        bagua_algos.release(model)

        model, optimizer = distributed(algorithm, sgd, make_model())
        model.append(nn.Linear(3, 3))
        other = sgd(model[3])
        results[f"{name} new module elsewhere"] = refusal(
            lambda m=model, o=optimizer, p=other: take_step(m, o, p)
        )
        bagua_algos.release(model)

        model = make_model()
        model, optimizer = distributed(algorithm, lambda _, m=model: sgd(m[0]), model)
        other = sgd(model[2])
        results[f"{name} second optimizer"] = refusal(
            lambda m=model, o=optimizer, p=other: take_step(m, o, p)
        )
        results[f"{name} second optimizer's weights"] = flat(model)
        bagua_algos.release(model)
    model = make_model()
    model, optimizer = all_reduced(model, lambda _: sgd(model[0]))
    optimizer.add_param_group({"params": list(model[2].parameters())})
    train(model, optimizer)
    results["ours"], results["expected"] = flat(model), ddp_weights()
    model.load_state_dict(make_model().state_dict(), assign=True)
    results["assigned"] = refusal(lambda: take_step(model, optimizer))
    bagua_algos.release(model)
    return results


def wrapped() -> Results:
    """Twice, with DDP, around or within."""
    model, _ = all_reduced(make_model())
    both = nn.Sequential(model, nn.Linear(3, 3))
    ddp = DistributedDataParallel(make_model())
    results: Results = {
        "twice": refusal(lambda: all_reduced(model)),
        "within": refusal(lambda: all_reduced(both)),
        "a part": refusal(lambda: all_reduced(model[0])),
        "ddp within": refusal(lambda: all_reduced(ddp)),
        "ddp around": refusal(lambda: loss_of(DistributedDataParallel(model), 0)),
    }
    bagua_algos.release(model)
    return results


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(6, 3, dtype=torch.complex64))

    def forward(self, x_b: Tensor) -> Tensor:
        return (x_b.to(torch.complex64) @ self.weight).abs()


def different_models() -> Results:
    """Each case builds another model on worker 1, or two that are as good as the same."""

    def layers(*names: str, size: int = 4) -> nn.ModuleDict:
        return nn.ModuleDict({name: nn.Linear(size, size, bias=False) for name in names})

    def with_buffer(name: str, *shape: int) -> nn.Module:
        model = make_model()
        model.register_buffer(name, torch.zeros(shape))
        return model

    def frozen(layer: int) -> nn.Module:
        model = make_model()
        model[layer].requires_grad_(False)
        return model

    conv = nn.Conv2d(2, 8, 3)
    large = 1 << 10  # so that a layer closes a bucket
    pairs: dict[str, tuple[nn.Module, nn.Module]] = {
        "order": (layers("a", "b"), layers("b", "a")),
        "shape": (nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)),
        "type": (make_model(), make_model().double()),
        "frozen": (frozen(0), frozen(2)),
        "fewer": (layers("a", "b", "c"), layers("a", "b")),
        "fewer buckets": (layers(*"abc", size=large), layers("a", size=large)),
        "buffer's name": (with_buffer("x", 2), with_buffer("y", 2)),
        "buffer's shape": (with_buffer("x", 2), with_buffer("x", 3)),
        "memory format": (conv, copy.deepcopy(conv).to(memory_format=torch.channels_last)),
        "compiled": (make_model(), torch.compile(make_model(), backend="eager")),
    }
    results: Results = {}
    for name, models in pairs.items():
        model = models[dist.get_rank()]
        results[name] = refusal(lambda model=model: all_reduced(model))
        if bagua_algos.is_distributed(model):
            bagua_algos.release(model)
    return results


def grown_buffers() -> Results:
    """A mask or table that grows with the longest sequence that a worker has seen, as in many a
    transformer, and one that is cached in an evaluation.
    """
    results: Results = {}
    tables = {"numbers": torch.zeros, "truths": lambda n: torch.ones(n, n, dtype=torch.bool)}
    for name, table in tables.items():
        for memory in (None, False):
            model = make_model()
            model.register_buffer("table", table(2))
            bagua_algos.distribute(model, sgd(model), AllReduce(), shared_memory=memory)
            model.table = table(4 + 2 * dist.get_rank())
            results[f"{name} {memory}"] = refusal(bagua_algos.consensus(model).__enter__)
            with torch.inference_mode():
                model.table = table(3) + dist.get_rank()
            with bagua_algos.consensus(model):
                results[f"{name} within"] = model.table.float().flatten()[None]
            bagua_algos.release(model)
    return results


def types() -> Results:
    """Parameters that an algorithm cannot train, and buffers that cannot be written to."""
    results: Results = {
        f"complex {type(algorithm).__name__}": refusal(
            lambda a=algorithm: distributed(a, sgd, Complex())
        )
        for algorithm in (TopK(), PowerSGD(rank=1))
    }
    model, optimizer = all_reduced(Complex())
    train(model, optimizer)
    results["ours"] = torch.view_as_real(model.weight.detach()).reshape(1, -1)
    bagua_algos.release(model)
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    results["meta"] = refusal(lambda: all_reduced(empty))
    graph, scaled = make_model(), make_model()
    graph.register_buffer("adjacency", torch.eye(3).to_sparse())
    scaled.register_buffer("scale", torch.tensor(0.5).expand(3))
    results["sparse"] = refusal(lambda: all_reduced(graph))
    results["expanded"] = refusal(lambda: all_reduced(scaled))
    return results


def resumed() -> Results:
    """Saved after half of the steps, and continued by another model in place of the first."""

    def run(algorithm: Algorithm, make_optimizer, *, stop: bool) -> Tensor:
        model, optimizer = distributed(algorithm, make_optimizer, make_model())
        train(model, optimizer, range(3))
        if stop:
            file = io.BytesIO()
            parts = (model.state_dict(), optimizer.state_dict(), bagua_algos.state_dict(model))
            torch.save(parts, file)
            bagua_algos.release(model)
            file.seek(0)
            parts = torch.load(file, weights_only=True)
            model, optimizer = distributed(algorithm, make_optimizer, make_model())
            model.load_state_dict(parts[0])
            optimizer.load_state_dict(parts[1])
            bagua_algos.load_state_dict(model, parts[2])
        train(model, optimizer, range(3, NUM_STEPS))
        weights = flat(model)
        bagua_algos.release(model)
        return weights

    results: Results = {}
    cases = ALGORITHMS | {
        "top_k": (TopK(), sgd),
        "power_sgd": (PowerSGD(rank=1, min_compression_rate=1), sgd),
    }
    for name, (algorithm, make_optimizer) in cases.items():
        for stop in (True, False):
            results[f"{name} {stop}"] = run(algorithm, make_optimizer, stop=stop)
    model, _ = distributed(LocalSGD(interval=2), sgd, make_model())
    state = bagua_algos.state_dict(model)
    bagua_algos.release(model)
    model, _ = distributed(SGP(), sgd, make_model())
    results["another"] = refusal(lambda: bagua_algos.load_state_dict(model, state))
    bagua_algos.release(model)
    return results


def dropped() -> Results:
    """Models and optimizers that go out of scope without `release`; `alive` are those that do not,
    and `threads` how many more there are in the end.
    """

    def run(algorithm: Algorithm, make_optimizer: MakeOptimizer) -> "weakref.ref[nn.Module]":
        model, optimizer = distributed(algorithm, make_optimizer, make_model())
        train(model, optimizer)
        return weakref.ref(model)

    gc.collect()
    before = set(threading.enumerate())
    models = {name: run(*parts) for name, parts in ALGORITHMS.items()}
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=10)
    return {
        "alive": [name for name, model in models.items() if model() is not None],
        "threads": len(set(threading.enumerate()) - before),
    }


def part_of_dropped() -> Results:
    """The model around this one was dropped without `release`."""
    part = make_model()
    all_reduced(nn.Sequential(part))
    gc.collect()
    refused = refusal(lambda: loss_of(part, 0).backward())
    part.zero_grad()
    model, optimizer = all_reduced(part)
    train(model, optimizer)
    bagua_algos.release(model)
    return {"refused": refused, "ours": flat(model), "expected": ddp_weights()}
