"""What a training script does around forward and backward of a sharded model."""

import io
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import (
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.nn.parallel import DistributedDataParallel

import bagua_algos
from bagua_algos import (
    SGP,
    Algorithm,
    AllReduce,
    ChocoSGD,
    CompressedAllReduce,
    Decentralized,
    LocalSGD,
    QAdam,
    TopK,
)
from bagua_algos.compressors import SignScale
from bagua_algos.outer_optimizer import Nesterov
from tests.bagua_algos.fsdp2.net import OWN_UNITS, Net, batch
from tests.bagua_algos.fsdp2.sharding import Place, shard, whole, whole_weights

CLIP_NORM = 0.3
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
Results = dict[str, Tensor]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-3)


def distributed(
    place: Place,
    algorithm: Algorithm,
    make: Callable[[nn.Module], torch.optim.Optimizer] = sgd,
    units: tuple[str, ...] = OWN_UNITS,
) -> tuple[Net, torch.optim.Optimizer]:
    model = Net()
    shard(model, place.mesh["shard"], units)
    return bagua_algos.distribute(model, make(model), algorithm, place.replicas)


def step(place: Place, model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    x_b, y_b = batch(number, place.replica, place.shard)
    optimizer.zero_grad()
    F.cross_entropy(model(x_b), y_b).backward()
    optimizer.step()


# Accumulation, clipping and a schedule: against torch's own.


def everything(
    place: Place, model: nn.Module, no_sync: Callable[[], AbstractContextManager]
) -> Results:
    optimizer = sgd(model)
    if no_sync is bagua_algos.no_sync:
        bagua_algos.distribute(model, optimizer, AllReduce(), place.replicas)
        no_sync = partial(bagua_algos.no_sync, model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    norms = []
    for number in range(4):
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        parts = zip(*(x.chunk(2) for x in batch(number, place.replica, place.shard)), strict=True)
        for part, (x_b, y_b) in enumerate(parts):
            with nullcontext() if part else no_sync():
                (F.cross_entropy(model(x_b).float(), y_b) / 2).backward()
        norms.append(whole(nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)))
        optimizer.step()
        schedule.step()
    weights = {name.removeprefix("module."): x for name, x in whole_weights(model).items()}
    return weights | {"norms": torch.stack(norms)}


def by_ddp(place: Place) -> Results:
    model = DistributedDataParallel(Net())
    return everything(place, model, model.no_sync)


def by_fsdp(place: Place, dimensions: str | tuple[str, ...], **options) -> Results:
    """By ours over one dimension of the mesh, by native HSDP over two."""
    model = Net()
    shard(model, place.mesh[dimensions], OWN_UNITS, **options)

    @contextmanager
    def no_sync():
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)

    is_ours = dimensions == "shard"
    return everything(place, model, bagua_algos.no_sync if is_ours else no_sync)


HSDP = ("replicate", "shard")


# Consensus.


def consensus(place: Place) -> Results:
    """Weights before, within and after, and of two more steps with and without one between."""
    results = {}
    for evaluates in (True, False):
        model, optimizer = distributed(place, LocalSGD(interval=100))
        for number in range(3):
            step(place, model, optimizer, number)
        if evaluates:
            results["before"] = whole_weights(model)
            with bagua_algos.consensus(model) as spread, torch.no_grad():
                results["within"] = whole_weights(model)
                results["outputs"] = model(batch(9, 0, 0)[0])  # leaves gathered weights behind
                saved = model.state_dict()
            with torch.inference_mode(), bagua_algos.consensus(model):
                pass
            results["saved"] = {name: whole(x) for name, x in saved.items()}
            results["after"] = whole_weights(model)
            results["spread"] = torch.tensor(spread)
        for number in range(3, 5):
            step(place, model, optimizer, number)
        results["went on" if evaluates else "never stopped"] = whole_weights(model)
        bagua_algos.release(model)
    return results


class Normed(nn.Module):
    """With a buffer, a frozen weight and other values on every process."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.frozen = nn.Linear(13, 5).requires_grad_(False)
        self.norm, self.out = nn.BatchNorm1d(5), nn.Linear(5, 3)
        self.norm.running_mean += seed

    def forward(self, x_b: Tensor) -> Tensor:
        return self.out(self.norm(self.frozen(x_b)))


def untrained(place: Place) -> Results:
    """Buffers and frozen weights at first, and before and in the consensus, which a script has
    changed.
    """
    model = Normed(2 * place.replica + place.shard)
    shard(model, place.mesh["shard"], ("frozen", "out"))
    bagua_algos.distribute(model, sgd(model), LocalSGD(), place.replicas)
    results = {"frozen": whole(model.frozen.weight), "first": model.norm.running_mean.clone()}
    model(batch(0, place.replica, place.shard)[0]).sum().backward()
    results["before"] = model.norm.running_mean.clone()
    with torch.no_grad():
        model.frozen.weight.add_(place.replica)
    with bagua_algos.consensus(model):
        results["within"] = model.norm.running_mean.clone()
        results["frozen within"] = whole(model.frozen.weight)
    bagua_algos.release(model)
    return results


# Checkpoints, and the end.

RESUMED: dict[str, Callable[[], Algorithm]] = {
    "ef_signsgd": lambda: CompressedAllReduce(compressor=SignScale(), error_feedback=True),
    "diloco": lambda: LocalSGD(interval=2, outer=Nesterov()),
    "choco_sgd": ChocoSGD,
    "sgp": SGP,
    "qadam": lambda: QAdam(warmup_steps=2),
}


def resume(place: Place, name: str) -> Results:
    """Weights of 5 steps, and of 3 and 2 with a file between."""
    make = adamw if name == "qadam" else sgd
    model, optimizer = distributed(place, RESUMED[name](), make)
    for number in range(3):
        step(place, model, optimizer, number)
    file = io.BytesIO()
    states = (model.state_dict(), optimizer.state_dict(), bagua_algos.state_dict(model))
    torch.save(states, file)
    results = {}
    for is_resumed in (False, True):
        if is_resumed:
            bagua_algos.release(model)
            model, optimizer = distributed(place, RESUMED[name](), make)
            file.seek(0)
            of_model, of_optimizer, of_algorithm = torch.load(file)
            model.load_state_dict(of_model)
            optimizer.load_state_dict(of_optimizer)
            bagua_algos.load_state_dict(model, of_algorithm)
        for number in range(3, 5):
            step(place, model, optimizer, number)
        results["resumed" if is_resumed else "went on"] = whole_weights(model)
    bagua_algos.release(model)
    return results


def release(place: Place) -> Results:
    """Adam's second moment in warm-up and after a release, and a gradient that nobody has
    averaged.
    """
    model, optimizer = distributed(place, QAdam(warmup_steps=2), adamw)
    results, bias = {}, model.head.bias
    for number in range(3):
        step(place, model, optimizer, number)
        if number == 0:
            results["in warm-up"] = whole(optimizer.state[bias]["exp_avg_sq"])
    assert bias not in optimizer.state
    bagua_algos.release(model)
    results["released"] = whole(optimizer.state[bias]["exp_avg_sq"])
    step(place, model, optimizer, 3)
    return results | {"gradient": whole(bias.grad), "steps": optimizer.state[bias]["step"]}


# Models and losses of other kinds.


class Branches(nn.Module):
    """Layers that all replicas, one and none of them use."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.always, self.sometimes, self.never = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x_b: Tensor, *, is_used: bool) -> Tensor:
        y_b = self.always(x_b)
        return self.sometimes(y_b) if is_used else y_b


def branches(place: Place) -> Results:
    """Gradients of the layers' biases; in the second step the other replica uses the one."""
    model, results = Branches(), {}
    shard(model, place.mesh["shard"], ("always", "sometimes", "never"))
    optimizer = sgd(model)
    bagua_algos.distribute(model, optimizer, AllReduce(), place.replicas)
    for number in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 4), is_used=place.replica == number).sum().backward()
        results |= {f"{k} {number}": whole(m.bias.grad) for k, m in model.named_children()}
    assert bagua_algos.tuning(model) is None
    bagua_algos.release(model)
    return results


def three_steps(
    place: Place, algorithm: Callable[[], Algorithm], units: tuple[str, ...] = OWN_UNITS
) -> Results:
    """Without units of its own a model is one unit, whose gradients are reduced when autograd has
    done all else.
    """
    model, optimizer = distributed(place, algorithm(), units=units)
    for number in range(3):
        step(place, model, optimizer, number)
    bagua_algos.release(model)
    return whole_weights(model)


def grouped(place: Place) -> Results:
    """Two layers sharded by one call: a unit of FSDP2's, and two buckets."""
    model = Net()
    fully_shard([model.stem, model.mid], mesh=place.mesh["shard"])
    shard(model, place.mesh["shard"])
    optimizer = sgd(model)
    bagua_algos.distribute(model, optimizer, AllReduce(), place.replicas)
    for number in range(3):
        step(place, model, optimizer, number)
    bagua_algos.release(model)
    return whole_weights(model)


class Tied(nn.Module):
    """One weight in two places."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.again, self.last = nn.Linear(13, 13), nn.Linear(13, 13), nn.Linear(13, 7)
        self.again.weight = self.first.weight

    def forward(self, x_b: Tensor) -> Tensor:
        return self.last(self.again(self.first(x_b).relu()).relu())


def tied(place: Place, *, is_ours: bool) -> Results:
    model = Tied()
    if is_ours:
        shard(model, place.mesh["shard"], ("last",))
    else:
        model = DistributedDataParallel(model)
    optimizer = sgd(model)
    if is_ours:
        bagua_algos.distribute(model, optimizer, AllReduce(), place.replicas)
    for number in range(3):
        step(place, model, optimizer, number)
    if is_ours:
        bagua_algos.release(model)
    return {name.removeprefix("module."): x for name, x in whole_weights(model).items()}


class WithLoss(Net):
    def loss(self, x_b: Tensor, y_b: Tensor) -> Tensor:
        return F.cross_entropy(Net.forward(self, x_b), y_b)


def by_another_method(place: Place) -> Results:
    """Decentralized training by `model.loss`, which is not forward."""
    model = WithLoss()
    shard(model, place.mesh["shard"], OWN_UNITS)
    register_fsdp_forward_method(model, "loss")
    optimizer = sgd(model)
    bagua_algos.distribute(model, optimizer, Decentralized(), place.replicas)
    for number in range(3):
        optimizer.zero_grad()
        model.loss(*batch(number, place.replica, place.shard)).backward()
        optimizer.step()
    weights = whole_weights(model)
    bagua_algos.release(model)
    return weights


def closures(place: Place) -> Results:
    """Adam's weights by closures, and by gradients that are there before the step."""
    results = {}
    for has_closure in (True, False):
        model, optimizer = distributed(place, QAdam(warmup_steps=1), adamw)
        for number in range(3):
            x_b, y_b = batch(number, place.replica, place.shard)

            def closure(model=model, optimizer=optimizer, x_b=x_b, y_b=y_b) -> Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x_b), y_b)
                loss.backward()
                return loss

            optimizer.step(closure) if has_closure else (closure(), optimizer.step())
        results[f"closure {has_closure}"] = whole_weights(model)
        bagua_algos.release(model)
    return results


def thrown_away(place: Place, momentum: float) -> dict[str, list]:
    """Gradients that nobody uses: in the first step one row of the first shard's overflows. What is
    said then and later, and whether all weights are numbers at the end.
    """
    model, optimizer = distributed(
        place, TopK(ratio=0.1, momentum=momentum), lambda m: torch.optim.SGD(m.parameters(), lr=0.1)
    )

    def overflow(module: nn.Module, inputs: tuple, outputs_bn: Tensor) -> None:
        first = torch.tensor([0])
        outputs_bn.register_hook(lambda gradient_bn: gradient_bn.index_fill(1, first, torch.inf))

    hook = model.stem.register_forward_hook(overflow)
    x_b, y_b = batch(0, place.replica, place.shard)
    said = []
    for number in range(4):
        loss = F.cross_entropy(model(x_b), y_b)
        hook.remove()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loss.backward()
        said.append([str(warning.message) for warning in caught])
        if number == 3:
            optimizer.step()
        optimizer.zero_grad()
    bagua_algos.release(model)
    return {"said": said, "finite": [whole(p).isfinite().all() for p in model.parameters()]}


CASES: dict[str, Callable[[Place], dict]] = {
    "ddp": by_ddp,
    "hsdp": partial(by_fsdp, dimensions=HSDP),
    "ours": partial(by_fsdp, dimensions="shard"),
    "hsdp in bf16": partial(by_fsdp, dimensions=HSDP, mp_policy=BF16),
    "ours in bf16": partial(by_fsdp, dimensions="shard", mp_policy=BF16),
    "consensus": consensus,
    "untrained": untrained,
    **{f"resume {name}": partial(resume, name=name) for name in RESUMED},
    "release": release,
    "branches": branches,
    "single unit": partial(three_steps, algorithm=AllReduce, units=()),
    "many units": partial(three_steps, algorithm=AllReduce),
    "grouped": grouped,
    "tied": partial(tied, is_ours=True),
    "tied by ddp": partial(tied, is_ours=False),
    "another method": by_another_method,
    "forward": partial(three_steps, algorithm=Decentralized),
    "closures": closures,
    "thrown away": partial(thrown_away, momentum=0.0),
    "thrown away with momentum": partial(thrown_away, momentum=0.9),
}
