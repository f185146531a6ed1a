"""Scripts that move or copy a distributed model."""

import copy
import io
import warnings

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim.swa_utils import AveragedModel

import bagua_algos
from bagua_algos import Algorithm, QAdam
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


def rewrite(model: nn.Module) -> None:
    vector_to_parameters(parameters_to_vector(model.parameters()) * 0.9, model.parameters())


def scale_in_place(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)


def there_and_back(model: nn.Module) -> None:
    model.double().float()


def channels_last(model: nn.Module) -> None:
    model.to(memory_format=torch.channels_last)


def nothing(model: nn.Module) -> None:
    pass


MOVES = {rewrite: scale_in_place, there_and_back: nothing, channels_last: nothing}
"""What takes weights out of their buckets, and what does the same without."""


def make_conv() -> nn.Module:
    torch.manual_seed(0)
    convolution = nn.Conv2d(2, 8, (3, 1))
    return nn.Sequential(nn.Unflatten(1, (2, 3, 1)), convolution, nn.Flatten(), nn.Linear(8, 3))


def moved_weights() -> Results:
    """Weights that leave their buckets between steps, and between backward and a step."""

    def run(algorithm: Algorithm, make_optimizer: MakeOptimizer, change) -> Tensor:
        model, optimizer = distributed(algorithm, make_optimizer, make_conv())
        train(model, optimizer, range(3))
        change(model)
        optimizer.zero_grad()
        loss_of(model, 3).backward()
        change(model)
        optimizer.step()
        train(model, optimizer, range(4, NUM_STEPS))
        bagua_algos.release(model)
        return flat(model)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results: Results = {
            f"{name} {change.__name__}": run(*ALGORITHMS[name], change)
            for name in ALGORITHMS
            for change in {*MOVES, *MOVES.values()}
        }
    results["warnings"] = sorted({str(warning.message) for warning in caught})
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


def kept_weights() -> Results:
    """A script evaluates other weights in place of its own, and keeps these without clone()."""

    def evaluate(model: nn.Module) -> None:
        with bagua_algos.consensus(model):
            pass

    model, optimizer = all_reduced(make_model())
    train(model, optimizer, range(3))
    backup = [p.data for p in model.parameters()]
    rewrite(model)
    results: Results = {"consensus": refusal(lambda: evaluate(model))}
    results["forward"] = refusal(lambda: loss_of(model, 3))
    for parameter, own in zip(model.parameters(), backup, strict=True):
        parameter.data = own
    train(model, optimizer, range(3, NUM_STEPS))
    results["ours"], results["expected"] = flat(model), ddp_weights()
    bagua_algos.release(model)
    return results


def evaluations() -> Results:
    """By local SGD between two averages, in inference mode; what is saved is looked at later."""
    model, optimizer = distributed(*ALGORITHMS["local_sgd"], make_model())
    train(model, optimizer, range(3))
    own = flat(model)
    mean = own.clone()
    dist.all_reduce(mean)
    with torch.inference_mode(), bagua_algos.consensus(model):
        evaluated = flat(model).clone()
        saved = model.state_dict(), model[2].state_dict()
    results: Results = {"returned": torch.equal(flat(model), own), "mean": mean / 2}
    train(model, optimizer, range(3, NUM_STEPS))
    twin = make_model()
    twin.load_state_dict(saved[0])
    twin[2].load_state_dict(saved[1])
    results |= {"evaluated": evaluated, "saved": flat(twin)}
    bagua_algos.release(model)
    return results


def copies() -> Results:
    """Copies and files of a distributed model."""
    model, optimizer = all_reduced(make_model())
    train(model, optimizer, range(2))
    twin, average = copy.deepcopy(model), AveragedModel(model)
    average.update_parameters(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    results: Results = {
        "same": all(torch.equal(flat(model), flat(x)) for x in (twin, average.module, loaded)),
        "plain": not any(vars(x)["_forward_pre_hooks"] for x in (twin, average.module, loaded)),
        "engine in file": b"bagua_algos" in file.getvalue(),
    }
    with warnings.catch_warnings(action="ignore"):  # torch calls it old
        results["torchscript"] = refusal(lambda: torch.jit.script(model))
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
