"""What a script does within a step: forward, backward and step in its own ways."""

from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import bagua_algos
from bagua_algos import (
    SGP,
    Algorithm,
    AllReduce,
    AsyncModelAverage,
    Decentralized,
    LocalSGD,
    QAdam,
)
from tests.bagua_algos.scripts.training import (
    ALGORITHMS,
    NUM_STEPS,
    MakeOptimizer,
    Results,
    adam,
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
        "ours": run(lambda model: all_reduced(model)),
        "expected": run(lambda model: (DistributedDataParallel(model), sgd(model))),
    }


def other_order() -> Results:
    """Two models in one backward pass, of which worker 1 calls the second first."""

    def run(*, by_rank: bool) -> Tensor:
        models = [make_model() for _ in range(2)]
        optimizers = [sgd(model) for model in models]
        for model, optimizer in zip(models, optimizers, strict=True):
            bagua_algos.distribute(model, optimizer, AllReduce(), timeout_s=20)
        for step in range(NUM_STEPS):
            order = (1, 0) if by_rank and dist.get_rank() == 1 else (0, 1)
            losses = {i: loss_of(models[i], step, i) for i in order}
            for optimizer in optimizers:
                optimizer.zero_grad()
            sum(losses.values()).backward()
            for optimizer in optimizers:
                optimizer.step()
        for model in models:
            bagua_algos.release(model)
        return torch.cat([flat(model) for model in models], 1)

    return {"ours": run(by_rank=True), "expected": run(by_rank=False)}


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

    model, optimizer = all_reduced(make())
    results: Results = {"ours": run(model, optimizer), "expected": plain()}
    bagua_algos.release(model)
    model, optimizer = distributed(Decentralized(), sgd, make())
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

    def run(algorithm: Algorithm, model: nn.Module) -> Tensor:
        model, optimizer = distributed(algorithm, sgd, model)
        for step in range(NUM_STEPS):
            optimizer.zero_grad()
            by_method(model, step).backward()
            optimizer.step()
        weights = flat(model)
        bagua_algos.release(model)
        return weights

    def looks_on(algorithm: Algorithm) -> Tensor:
        model, optimizer = distributed(algorithm, sgd, make_model())
        for step in range(NUM_STEPS):
            optimizer.zero_grad()
            loss_of(model, step).backward()
            loss_of(model, step)  # to be printed, say
            optimizer.step()
        weights = flat(model)
        bagua_algos.release(model)
        return weights

    def all_ways(make: Callable[[], Algorithm]) -> Results:
        return {
            "forward": run(make(), make_model()),
            "method": run(make(), Method()),
            "eval": run(make(), make_model().eval()),
            "looks on": looks_on(make()),
            "compiled before": run(make(), torch.compile(make_model(), backend="eager")),
        }

    return {
        f"{type(make()).__name__} {way}": weights
        for make in (Decentralized, lambda: SGP(overlap=True))
        for way, weights in all_ways(make).items()
    }


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
    for name, (algorithm, make_optimizer) in ALGORITHMS.items():
        for way in (run, in_turn):
            model, optimizer = distributed(algorithm, make_optimizer, make_model())
            results[f"{name} {way.__name__}"] = way(model, optimizer)
            bagua_algos.release(model)
    model, optimizer = all_reduced(
        make_model(), lambda model: torch.optim.LBFGS(model.parameters(), max_iter=4)
    )
    results["several calls"] = refusal(lambda: run(model, optimizer))
    bagua_algos.release(model)
    return results


def compiled() -> Results:
    """Compiled after it was distributed, with no break in its graph, and not compiled."""

    def run(algorithm: Algorithm, make_optimizer, *, is_compiled: bool) -> Tensor:
        model, optimizer = distributed(algorithm, make_optimizer, make_model())
        fast = torch.compile(model, fullgraph=True, backend="eager") if is_compiled else model
        train(fast, optimizer)
        bagua_algos.release(model)
        return flat(model)

    return {
        f"{name} {is_compiled}": run(*ALGORITHMS[name], is_compiled=is_compiled)
        for name in ALGORITHMS
        for is_compiled in (True, False)
    }


def accumulation() -> Results:
    """Two micro-batches a step, with `model.no_sync()` and without."""

    def run(algorithm: Algorithm, make_optimizer, *, no_sync: bool) -> Tensor:
        model, optimizer = distributed(algorithm, make_optimizer, make_model())
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

    def never() -> None:
        model, optimizer = all_reduced(make_model())
        try:
            with model.no_sync():
                train(model, optimizer)
        finally:
            bagua_algos.release(model)

    return {
        f"{name} {no_sync}": run(*ALGORITHMS[name], no_sync=no_sync)
        for name in ALGORITHMS
        for no_sync in (True, False)
    } | {"never": refusal(never)}


def out_of_examples() -> Results:
    """Two micro-batches a step, of which worker 1 has none from the third step on: `empty`, or a
    loss times 0 in their place.
    """

    def run(algorithm: Algorithm, make_optimizer: MakeOptimizer, *, empty: bool) -> Tensor:
        model, optimizer = distributed(algorithm, make_optimizer, make_model())
        for step in range(NUM_STEPS):
            is_out = dist.get_rank() == 1 and step >= 2
            optimizer.zero_grad()
            for micro_batch in range(2):
                with model.no_sync() if micro_batch == 0 else nullcontext():
                    if is_out and empty:
                        bagua_algos.empty_backward(model)
                    else:
                        (loss_of(model, step, micro_batch) * (not is_out)).backward()
            optimizer.step()
        bagua_algos.release(model)
        return flat(model)

    return {
        f"{name} {empty}": run(*ALGORITHMS[name], empty=empty)
        for name in ALGORITHMS
        for empty in (True, False)
    }


def give_own_gradients(model: nn.Module, step: int, *, in_place: bool = False) -> None:
    """This worker's, of a loss on which nobody calls backward()."""
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss_of(model, step), parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if in_place:
            assert parameter.grad is not None
            parameter.grad.copy_(gradient)
        else:
            parameter.grad = gradient


def own_gradients() -> Results:
    """Steps without a backward pass, on gradients by hand and on what is left of the last pass."""

    def by_hand(algorithm: Algorithm, make_optimizer: MakeOptimizer, *, first: int = 0) -> str:
        model, optimizer = distributed(algorithm, make_optimizer, make_model())
        train(model, optimizer, range(first))
        give_own_gradients(model, first)
        sentence = refusal(optimizer.step)
        bagua_algos.release(model)
        return sentence

    results: Results = {
        "all_reduce": by_hand(AllReduce(), sgd),
        "later": by_hand(AllReduce(), sgd, first=2),
        "qadam": by_hand(QAdam(warmup_steps=1), adam, first=2),
        "decentralized": by_hand(Decentralized(), sgd, first=1),
        "sgp": by_hand(SGP(overlap=True), sgd),
        "local_sgd": by_hand(LocalSGD(interval=2), sgd),
        "post-local": by_hand(LocalSGD(interval=2, start_step=1), sgd, first=1),
        "before post-local": by_hand(LocalSGD(interval=2, start_step=2), sgd, first=1),
        "async": by_hand(AsyncModelAverage(), sgd),
        "async warm-up": by_hand(AsyncModelAverage(warmup_steps=1), sgd),
    }
    model, optimizer = all_reduced(make_model())
    train(model, optimizer, range(1))
    with bagua_algos.consensus(model):  # writes to the weights beside the gradients
        pass
    results["second step"] = refusal(optimizer.step)
    optimizer.zero_grad(set_to_none=False)
    results["zeros"] = refusal(optimizer.step)
    give_own_gradients(model, 1, in_place=True)
    results["in place"] = refusal(optimizer.step)
    optimizer.zero_grad()
    results["nothing"] = refusal(optimizer.step)
    with model.no_sync():
        give_own_gradients(model, 1)
        results["no_sync"] = refusal(optimizer.step)
    optimizer.zero_grad()
    loss_of(model, 1).backward()
    with model.no_sync():
        results["averaged, in no_sync"] = refusal(optimizer.step)
    loss_of(model, 2).backward(inputs=list(model.parameters()))
    results["inputs"] = refusal(optimizer.step)
    results["ours"] = flat(model)
    bagua_algos.release(model)
    return results


def reentrant() -> Results:
    """Activation checkpointing of the first layers alone: the first gradient is another's."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = make_model(), nn.Linear(3, 3)

        def forward(self, x_b: Tensor) -> Tensor:
            return self.head(checkpoint(self.body, x_b.requires_grad_(), use_reentrant=True))

    model, _ = all_reduced(Half())
    results: Results = {"refused": refusal(lambda: loss_of(model, 0).backward())}
    bagua_algos.release(model)
    return results


def second_order() -> Results:
    """A graph of gradients, by backward; then training as ever."""
    model, optimizer = all_reduced(make_model())
    results: Results = {"graph": refusal(lambda: loss_of(model, 0).backward(create_graph=True))}
    train(model, optimizer)
    results["ours"], results["expected"] = flat(model), ddp_weights()
    bagua_algos.release(model)
    return results
