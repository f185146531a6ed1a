"""Runs every script on real gloo workers: `python -m tests.bagua_algos.scripts.workers FOLDER 2`.

Each script distributes over the default process group, as strangers do, and releases at its end.
"""

import copy
import io
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import bagua_algos
from bagua_algos import SGP, AllReduce, Decentralized, LocalSGD, PowerSGD, QAdam, TopK
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from tests.bagua_algos.gloo import fork_workers
from tests.bagua_algos.scripts.training import (
    NUM_STEPS,
    adam,
    ddp_weights,
    distributed,
    flat,
    loss_of,
    make_model,
    refusal,
    sgd,
    train,
)

Results = dict[str, Any]
MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


def two_models() -> Results:
    """Teacher and student in one backward pass, distributed both, then by DDP both."""

    def run(prepare: Callable[[nn.Module], tuple[nn.Module, torch.optim.Optimizer]]) -> Tensor:
        pairs = [prepare(make_model()) for _ in range(2)]
        for step in range(NUM_STEPS):
            for _, optimizer in pairs:
                optimizer.zero_grad()
            sum(loss_of(model, step, i) for i, (model, _) in enumerate(pairs)).backward()
            for _, optimizer in pairs:
                optimizer.step()
        weights = torch.cat([flat(model) for model, _ in pairs], 1)
        for model, _ in pairs:
            if bagua_algos.is_distributed(model):
                bagua_algos.release(model)
        return weights

    return {
        "ours": run(lambda model: distributed(model=model)),
        "expected": run(lambda model: (DistributedDataParallel(model), sgd(model))),
    }


class SumInBackward(torch.autograd.Function):
    """A layer with a collective of its own on the default group, as in SyncBatchNorm."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient / dist.get_world_size()


class Collective(nn.Module):
    def forward(self, x):
        return SumInBackward.apply(x)


def own_collectives() -> Results:
    """In a layer's backward, and of the loss between forward and backward, for algorithms with work
    under way at either time.
    """

    def make() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 16), Collective(), nn.Tanh(), nn.Linear(16, 3))

    def run(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        for step in range(NUM_STEPS):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            total = loss.detach().clone()
            dist.all_reduce(total)
            loss.backward()
            optimizer.step()
        return flat(model)

    def plain() -> Tensor:
        model = make()
        return run(DistributedDataParallel(model), sgd(model))

    model, optimizer = distributed(model=make())
    results = {"ours": run(model, optimizer), "expected": plain()}
    bagua_algos.release(model)
    model, optimizer = distributed(Decentralized(), model=make())
    results["decentralized ran"] = run(model, optimizer)
    bagua_algos.release(model)
    return results


class Method(nn.Module):
    """Its loss comes from a method of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_model()

    def training_loss(self, step: int) -> Tensor:
        return loss_of(self.net, step)


def no_forward() -> Results:
    """Losses that no `forward` of the distributed model in training mode has made."""

    def by_method(model: nn.Module, step: int) -> Tensor:
        return model.training_loss(step) if isinstance(model, Method) else loss_of(model, step)

    def run(algorithm: bagua_algos.Algorithm, model: nn.Module) -> Tensor:
        model, optimizer = distributed(algorithm, model=model)
        for step in range(NUM_STEPS):
            optimizer.zero_grad()
            by_method(model, step).backward()
            optimizer.step()
        weights = flat(model)
        bagua_algos.release(model)
        return weights

    def all_ways(make: Callable[[], bagua_algos.Algorithm]) -> Results:
        return {
            "forward": run(make(), make_model()),
            "method": run(make(), Method()),
            "eval": run(make(), make_model().eval()),
            "compiled before": run(make(), torch.compile(make_model(), backend="eager")),
        }

    return {
        f"{type(make()).__name__} {way}": weights
        for make in (Decentralized, lambda: SGP(overlap=True))
        for way, weights in all_ways(make).items()
    }


def rewrite(model: nn.Module) -> None:
    vector_to_parameters(parameters_to_vector(model.parameters()) * 0.9, model.parameters())


def scale_in_place(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)


def there_and_back(model: nn.Module) -> None:
    model.double().float()


def channels_last(model: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.to(memory_format=torch.channels_last)


def nothing(model: nn.Module) -> None:
    pass


MOVES = {rewrite: scale_in_place, there_and_back: nothing, channels_last: nothing}
"""What takes weights out of their buckets, and what does the same without."""

ALGORITHMS: tuple[tuple[bagua_algos.Algorithm, MakeOptimizer], ...] = (
    (AllReduce(), sgd),
    (QAdam(warmup_steps=2), adam),
    (Decentralized(), sgd),
    (LocalSGD(interval=2), sgd),
    (SGP(), sgd),
)


def make_conv() -> nn.Module:
    torch.manual_seed(0)
    convolution = nn.Conv2d(2, 8, (3, 1))
    return nn.Sequential(nn.Unflatten(1, (2, 3, 1)), convolution, nn.Flatten(), nn.Linear(8, 3))


def moved_weights() -> Results:
    """Weights that leave their buckets between steps, and between backward and a step."""

    def run(algorithm: bagua_algos.Algorithm, make_optimizer: MakeOptimizer, change) -> Tensor:
        model, optimizer = distributed(algorithm, make_optimizer, model=make_conv())
        train(model, optimizer, range(3))
        change(model)
        optimizer.zero_grad()
        loss_of(model, 3).backward()
        change(model)
        optimizer.step()
        train(model, optimizer, range(4, NUM_STEPS))
        bagua_algos.release(model)
        return flat(model)

    results = {
        f"{type(algorithm).__name__} {change.__name__}": run(algorithm, make_optimizer, change)
        for algorithm, make_optimizer in ALGORITHMS
        for change in {*MOVES, *MOVES.values()}
    }
    model = make_conv().to(memory_format=torch.channels_last)
    model, optimizer = distributed(QAdam(warmup_steps=2), adam, model)
    train(model, optimizer)
    results["QAdam channels_last before"] = flat(model)
    plain, plain_optimizer = distributed(QAdam(warmup_steps=2), adam, make_conv())
    train(plain, plain_optimizer)
    results["QAdam contiguous"] = flat(plain)
    bagua_algos.release(plain)
    weight = model[1].weight
    results["is channels_last"] = weight.is_contiguous(memory_format=torch.channels_last)
    results["double"] = refusal(lambda: loss_of(model.double(), 0))
    bagua_algos.release(model.float())
    return results


def closures() -> Results:
    """The same training with `step(closure)` and without."""

    def run(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        for step in range(NUM_STEPS):

            def closure(step: int = step) -> Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, step)
                loss.backward()
                return loss

            optimizer.step(closure)
        return flat(model)

    def in_turn(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
        train(model, optimizer)
        return flat(model)

    results: Results = {}
    for algorithm, make_optimizer in ALGORITHMS:
        for way in (run, in_turn):
            model, optimizer = distributed(algorithm, make_optimizer)
            results[f"{type(algorithm).__name__} {way.__name__}"] = way(model, optimizer)
            bagua_algos.release(model)
    model, optimizer = distributed(
        make_optimizer=lambda model: torch.optim.LBFGS(model.parameters(), max_iter=4)
    )
    results["several calls"] = refusal(lambda: run(model, optimizer))
    bagua_algos.release(model)
    return results


def accumulation() -> Results:
    """Two micro-batches a step, with `model.no_sync()` and without."""

    def run(algorithm: bagua_algos.Algorithm, make_optimizer, *, no_sync: bool) -> Tensor:
        model, optimizer = distributed(algorithm, make_optimizer)
        for step in range(NUM_STEPS):
            optimizer.zero_grad()
            if no_sync:
                with model.no_sync():
                    loss_of(model, step, 0).backward()
            else:
                loss_of(model, step, 0).backward()
            loss_of(model, step, 1).backward()
            optimizer.step()
        bagua_algos.release(model)
        return flat(model)

    return {
        f"{type(algorithm).__name__} {no_sync}": run(algorithm, make_optimizer, no_sync=no_sync)
        for algorithm, make_optimizer in ((AllReduce(), sgd),)
        for no_sync in (True, False)
    }


def copies() -> Results:
    """Copies and files of a distributed model."""
    model, optimizer = distributed()
    train(model, optimizer, range(2))
    twin, average = copy.deepcopy(model), AveragedModel(model)
    average.update_parameters(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    results = {
        "same": all(torch.equal(flat(model), flat(x)) for x in (twin, average.module, loaded)),
        "plain": not any(vars(x)["_forward_pre_hooks"] for x in (twin, average.module, loaded)),
        "engine in file": b"bagua_algos" in file.getvalue(),
    }
    before = flat(model).clone()
    twin_optimizer = sgd(twin)
    if dist.get_rank() == 0:  # a copy trains alone
        with twin.no_sync():
            train(twin, twin_optimizer, range(2, 3))
    results["apart"] = torch.equal(flat(model), before)
    train(model, optimizer, range(2, NUM_STEPS))
    results["ours"], results["expected"] = flat(model), ddp_weights()

    def size(tensors: dict[str, Tensor]) -> int:
        file = io.BytesIO()
        torch.save(tensors, file)
        return len(file.getvalue())

    results["size"] = size(model.state_dict())
    results["head's size"] = size(model[2].state_dict())
    bagua_algos.release(model)
    results["plain size"] = size(make_model().state_dict())
    results["plain head's size"] = size(make_model()[2].state_dict())
    results["released"] = not hasattr(model, "no_sync")
    return results


def more_parameters() -> Results:
    """A new module, a second optimizer, a replaced parameter."""
    results: Results = {}

    def take_step(model: nn.Module, *optimizers: torch.optim.Optimizer) -> None:
        loss_of(model, 0).backward()
        for optimizer in optimizers:
            optimizer.step()

    for algorithm in (AllReduce(), LocalSGD(interval=1)):
        name = type(algorithm).__name__
        model, optimizer = distributed(algorithm)
        model.append(nn.Linear(3, 3))
        optimizer.add_param_group({"params": list(model[3].parameters())})
        results[f"{name} new module"] = refusal(lambda m=model, o=optimizer: take_step(m, o))
        bagua_algos.release(model)

        model, optimizer = distributed(algorithm)
        model.append(nn.Linear(3, 3))
        other = sgd(model[3])
        results[f"{name} new module elsewhere"] = refusal(
            lambda m=model, o=optimizer, p=other: take_step(m, o, p)
        )
        bagua_algos.release(model)

        model = make_model()
        model, optimizer = distributed(algorithm, lambda m: sgd(m[0]), model)
        other = sgd(model[2])
        results[f"{name} second optimizer"] = refusal(
            lambda m=model, o=optimizer, p=other: take_step(m, o, p)
        )
        results[f"{name} second optimizer's weights"] = flat(model)
        bagua_algos.release(model)
    model = make_model()
    model, optimizer = distributed(make_optimizer=lambda m: sgd(m[0]), model=model)
    optimizer.add_param_group({"params": list(model[2].parameters())})
    train(model, optimizer)
    results["ours"], results["expected"] = flat(model), ddp_weights()
    model.load_state_dict(make_model().state_dict(), assign=True)
    results["assigned"] = refusal(lambda: take_step(model, optimizer))
    bagua_algos.release(model)
    return results


def wrapped() -> Results:
    """Twice, with DDP, around or within."""
    model, optimizer = distributed()
    both = nn.Sequential(model, nn.Linear(3, 3))
    ddp = DistributedDataParallel(make_model())
    results = {
        "twice": refusal(lambda: distributed(model=model)),
        "within": refusal(lambda: distributed(model=both)),
        "a part": refusal(lambda: distributed(model=model[0])),
        "ddp within": refusal(lambda: distributed(model=ddp)),
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


def types() -> Results:
    """Parameters that an algorithm cannot train."""
    results: Results = {
        f"complex {type(algorithm).__name__}": refusal(
            lambda a=algorithm: distributed(a, model=Complex())
        )
        for algorithm in (TopK(), PowerSGD(rank=1))
    }
    model, optimizer = distributed(model=Complex())
    train(model, optimizer)
    results["ours"] = torch.view_as_real(model.weight.detach()).reshape(1, -1)
    bagua_algos.release(model)
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    results["meta"] = refusal(lambda: distributed(model=empty))
    return results


def reentrant() -> Results:
    """Activation checkpointing of the first layers alone: the first gradient is another's."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = make_model(), nn.Linear(3, 3)

        def forward(self, x_b: Tensor) -> Tensor:
            return self.head(checkpoint(self.body, x_b.requires_grad_(), use_reentrant=True))

    model, _ = distributed(model=Half())
    results = {"refused": refusal(lambda: loss_of(model, 0).backward())}
    bagua_algos.release(model)
    return results


def resumed() -> Results:
    """Saved after half of the steps, and continued by another model in place of the first."""

    def run(algorithm: bagua_algos.Algorithm, make_optimizer, *, stop: bool) -> Tensor:
        model, optimizer = distributed(algorithm, make_optimizer)
        train(model, optimizer, range(3))
        if stop:
            file = io.BytesIO()
            parts = (model.state_dict(), optimizer.state_dict(), bagua_algos.state_dict(model))
            torch.save(parts, file)
            bagua_algos.release(model)
            file.seek(0)
            parts = torch.load(file, weights_only=True)
            model, optimizer = distributed(algorithm, make_optimizer)
            model.load_state_dict(parts[0])
            optimizer.load_state_dict(parts[1])
            bagua_algos.load_state_dict(model, parts[2])
        train(model, optimizer, range(3, NUM_STEPS))
        weights = flat(model)
        bagua_algos.release(model)
        return weights

    results: Results = {}
    for name, (algorithm, make_optimizer) in {
        "qadam": (QAdam(warmup_steps=2), adam),
        "sgp": (SGP(overlap=True), sgd),
        "local": (LocalSGD(interval=2), sgd),
        "top_k": (TopK(), sgd),
        "power": (PowerSGD(rank=1, min_compression_rate=1), sgd),
        "decentralized": (Decentralized(), sgd),
    }.items():
        for stop in (True, False):
            results[f"{name} {stop}"] = run(algorithm, make_optimizer, stop=stop)
    model, _ = distributed(LocalSGD(interval=2))
    state = bagua_algos.state_dict(model)
    bagua_algos.release(model)
    model, _ = distributed(SGP())
    results["another"] = refusal(lambda: bagua_algos.load_state_dict(model, state))
    bagua_algos.release(model)
    return results


SCRIPTS: dict[str, Callable[[], Results]] = {
    script.__name__: script
    for script in (
        two_models,
        own_collectives,
        no_forward,
        moved_weights,
        closures,
        accumulation,
        copies,
        more_parameters,
        wrapped,
        types,
        reentrant,
        resumed,
    )
}


def run_all(communicator: ProcessGroupCommunicator) -> dict[str, Results]:
    names = sys.argv[3:] or list(SCRIPTS)
    results = {name: SCRIPTS[name]() for name in names}
    return results


if __name__ == "__main__":
    sys.exit(fork_workers(run_all, Path(sys.argv[1]), int(sys.argv[2])))
