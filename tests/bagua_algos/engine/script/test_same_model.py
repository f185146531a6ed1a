"""Workers that have built different models. They are threads, which meet where workers would."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bagua_algos.engine.script.same_model import (
    Meeting,
    check_same_model,
    check_still_same_model,
)

WAIT_S = 20


class Worker:
    """One of them, as a communicator."""

    def __init__(self, rank: int, given: list[Any], met: Barrier) -> None:
        self.ranks, self.world_size = (rank,), len(given)
        self._given, self._met = given, met

    def all_reduce_mean_(self, x_wn: Tensor) -> None:
        assert x_wn.numel() * x_wn.element_size() == 256 and not x_wn.is_inference()
        x_wn.copy_(self.all_gather(x_wn).mean(1))

    def all_gather(self, x_wt: Tensor) -> Tensor:
        self._given[self.ranks[0]] = x_wt
        self._met.wait(WAIT_S)
        gathered_wNt = torch.stack(self._given, 1)
        self._met.wait(WAIT_S)
        return gathered_wNt


def run(name: str, job: Callable[[], None]) -> None:
    """At once."""
    job()


def sgd(model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    """Of all parameters in one group."""
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, **settings})


def said(*models: nn.Module, ask: Callable[[nn.Module, Any], None] | None = None) -> list[str]:
    """What each worker is told; "" if nothing."""
    given, met = [None] * len(models), Barrier(len(models))

    def check(rank: int) -> str:
        worker: Any = Worker(rank, given, met)
        try:
            if ask is None:
                check_same_model(models[rank], sgd(models[rank]), worker, run)
            else:
                ask(models[rank], worker)
        except ValueError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(models)) as threads:
        return list(threads.map(check, range(len(models))))


def layers(*sizes: int, frozen: int | None = None, buffer: tuple[str, Tensor] | None = None):
    model = nn.Sequential(*(nn.Linear(size, 3, bias=False) for size in sizes))
    if frozen is not None:
        model[frozen].requires_grad_(False)
    if buffer is not None:
        model.register_buffer(*buffer)
    return model


def convolution(*, is_frozen: bool = False, is_turned: bool = False) -> nn.Module:
    model = nn.Sequential(nn.Linear(1, 1), nn.Conv2d(2, 8, 3, bias=False))
    model[1].requires_grad_(not is_frozen)
    return model.to(memory_format=torch.channels_last if is_turned else torch.contiguous_format)


class Compiled(nn.Module):
    """As torch.compile names its parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._orig_mod = model


@pytest.mark.parametrize(
    "make",
    [
        lambda rank: layers(3, 4),
        lambda rank: layers(3, 4, frozen=1, buffer=("x", torch.zeros(2))),
        lambda rank: convolution(is_turned=True),
        lambda rank: convolution(is_frozen=True, is_turned=rank == 1),
        lambda rank: Compiled(layers(3, 4)) if rank == 1 else layers(3, 4),
    ],
)
def test_the_same_model_is_told_nothing(make: Callable[[int], nn.Module]):
    assert said(make(0), make(1)) == ["", ""]


@pytest.mark.parametrize(
    ("model", "other", "own_part", "others_part"),
    [
        (
            layers(3, 4, 5),
            layers(3, 5, 4),
            "from the trainable '1.weight' of shape (3, 4) in float32 on",
            "from the trainable '1.weight' of shape (3, 5) in float32 on",
        ),
        (
            layers(3, 4),
            layers(3, 4).double(),
            "from the trainable '0.weight' of shape (3, 3) in float32 on",
            "from the trainable '0.weight' of shape (3, 3) in float64 on",
        ),
        (
            layers(3, 4, frozen=1),
            layers(3, 4),
            "from the frozen '1.weight' of shape (3, 4) in float32 on",
            "from the trainable '1.weight' of shape (3, 4) in float32 on",
        ),
        (
            layers(3, 4, 5),
            layers(3, 4),
            "from the trainable '2.weight' of shape (3, 5) in float32 on",
            "which goes on after the trainable '1.weight' of shape (3, 4) in float32",
        ),
        (
            layers(3, buffer=("x", torch.zeros(2))),
            layers(3, buffer=("y", torch.zeros(2))),
            "from the buffer 'x' of shape (2,) in float32 on",
            "from the buffer 'y' of shape (2,) in float32 on",
        ),
        (
            convolution(),
            convolution(is_turned=True),
            "from the trainable '1.weight' of shape (8, 2, 3, 3) in float32 on",
            "from the trainable '1.weight' of shape (8, 2, 3, 3) in float32, channels_last on",
        ),
    ],
)
def test_each_worker_is_told_of_its_own_model(model, other, own_part, others_part):
    build = "build the same model on every worker, with the same layers frozen, in an order that no"
    sentences = said(model, other)
    for rank, part in enumerate((own_part, others_part)):
        sentence = sentences[rank]
        assert sentence.startswith(f"worker {rank}'s model differs from worker {1 - rank}'s, ")
        assert f", {part}: {build}" in sentence


def test_of_three_workers_each_is_told_of_the_first_that_differs():
    sentences = said(layers(3, 4), layers(3, 4), layers(3, 5))
    pairs = [(0, 2), (1, 2), (2, 0)]
    assert [sentence.partition("'s, ")[0] for sentence in sentences] == [
        f"worker {own}'s model differs from worker {other}" for own, other in pairs
    ]


def test_of_many_workers_each_is_told_of_the_first_that_differs():
    """Some of so many digests have bytes in common."""
    sentences = said(*(layers(size) for size in range(1, 41)))
    for own, sentence in enumerate(sentences):
        place = f"from the trainable '0.weight' of shape (3, {own + 1}) in float32 on: "
        assert sentence.startswith(f"worker {own}'s model differs from worker {int(own == 0)}'s, ")
        assert place in sentence


def test_the_place_is_found_in_models_of_many_layers():
    sizes = [1] * 300
    sentences = said(layers(*sizes), layers(*sizes[:-1], 2))
    for size, sentence in enumerate(sentences, 1):
        assert f", from the trainable '299.weight' of shape (3, {size}) in float32 on: " in sentence


def test_one_process_that_holds_all_workers_compares_nothing():
    worker: Any = Worker(0, [None], Barrier(2))
    model = layers(3)
    check_same_model(model, sgd(model), worker, lambda name, job: pytest.fail("a job"))
    for num_workers in (2, 3):
        worker.ranks, worker.world_size = tuple(range(num_workers)), num_workers
        check_same_model(model, sgd(model), worker, lambda name, job: pytest.fail("a job"))


def said_of_optimizers(*makes: Callable[[nn.Module], torch.optim.Optimizer]) -> list[str]:
    """What each worker is told, of whose equal models each has an optimizer."""
    models = [layers(3, 4) for _ in makes]
    made = {model: make(model) for make, model in zip(makes, models, strict=True)}

    def ask(model: nn.Module, worker: Any) -> None:
        check_same_model(model, made[model], worker, run)

    return said(*models, ask=ask)


def in_groups(*places: int, lr: float = 0.1) -> Callable[[nn.Module], torch.optim.Optimizer]:
    """A group for each of some layers, the second without weight decay."""

    def make(model: Any) -> torch.optim.Optimizer:
        decays = (0.01, 0.0)
        groups = [
            {"params": [model[place].weight], "weight_decay": decay}
            for place, decay in zip(places, decays, strict=False)
        ]
        return torch.optim.SGD(groups, lr=lr)

    return make


@pytest.mark.parametrize(
    ("one", "other", "first"),
    [
        (sgd, partial(sgd, lr=0.2), "group 0: SGD of dampening=0, lr=0.1, maximize=False, mom"),
        (sgd, partial(sgd, momentum=0.9), "group 0: SGD of dampening=0, lr=0.1, maximize=False"),
        (sgd, partial(sgd, lr=torch.tensor(0.2)), "group 0: SGD of dampening=0, lr=0.1"),
        (sgd, lambda model: torch.optim.Adam(model.parameters(), lr=0.1), "group 0: SGD of"),
        (in_groups(0, 1), in_groups(1, 0), "group 0 with '0.weight' on"),
        (in_groups(0), in_groups(0, 1), "which goes on after group 0 with '0.wei"),
    ],
)
def test_each_worker_is_told_of_its_own_optimizer(one, other, first):
    sentences = said_of_optimizers(one, other)
    for rank, sentence in enumerate(sentences):
        assert sentence.startswith(f"worker {rank}'s optimizer differs from worker {1 - rank}'s, ")
        assert sentence.endswith("to train by others, give them to its groups after distribute")
    assert first in sentences[0]


@pytest.mark.parametrize(
    "other",
    [
        partial(sgd, foreach=True),
        partial(sgd, fused=True),
        partial(sgd, lr=torch.tensor(0.1, dtype=torch.float64)),
    ],
)
def test_optimizers_that_step_alike_are_taken(other):
    assert said_of_optimizers(sgd, other) == ["", ""]


def said_later(*models: nn.Module) -> list[str]:
    """What each worker is told where the models are about to be averaged, in inference mode."""

    def ask(model: nn.Module, worker: Any) -> None:
        with torch.inference_mode():
            meeting = Meeting(worker, worker, run)
            check_still_same_model(model, [meeting], torch.device("cpu"))

    return said(*models, ask=ask)


def with_buffers(*buffers: Tensor) -> nn.Module:
    model = layers(3)
    for number, x in enumerate(buffers):
        model.register_buffer(f"x{number}", x)
    return model


@pytest.mark.parametrize(
    ("one", "other", "first", "second"),
    [
        (
            with_buffers(torch.zeros(2), torch.zeros(2, 3)),
            with_buffers(torch.zeros(2), torch.zeros(3, 2)),
            "the buffer 'x1' of shape (2, 3) in float32",
            "the buffer 'x1' of shape (3, 2) in float32",
        ),
        (
            with_buffers(torch.zeros(0, 2)),
            with_buffers(torch.zeros(1, 2)),
            "the buffer 'x0' of shape (0, 2) in float32",
            "the buffer 'x0' of shape (1, 2) in float32",
        ),
        (
            with_buffers(torch.zeros(2)),
            with_buffers(torch.zeros(2).long()),
            "the buffer 'x0' of shape (2,) in float32",
            "the buffer 'x0' of shape (2,) in int64",
        ),
        (with_buffers(), with_buffers(torch.zeros(2)), "nothing more", "the buffer 'x0' of shape"),
        (layers(4), layers(5), "the parameter '0.weight' of shape (3, 4)", "of shape (3, 5) in"),
    ],
)
def test_models_that_differ_later_are_told_of_to_all_workers(one, other, first, second):
    for models, (before, after) in (
        ((one, other), (first, second)),
        ((other, one), (second, first)),
    ):
        sentences = said_later(*models)
        assert len(set(sentences)) == 1
        start, _, rest = sentences[0].partition(" and worker 1 has ")
        assert start.startswith("worker 0 has ") and before in start
        assert after in rest.partition(", so that they cannot be averaged: change shapes and")[0]


def test_of_many_models_the_first_that_differs_later_is_told_of():
    for rank in (1, 2, 39):
        models = [with_buffers(torch.zeros(2 + (n == rank))) for n in range(40)]
        (sentence,) = set(said_later(*models))
        assert sentence.startswith("worker 0 has the buffer 'x0' of shape (2,)")
        assert f"worker {rank} has the buffer 'x0' of shape (3,)" in sentence


def test_models_that_are_alike_later_and_frozen_on_one_worker_are_told_nothing():
    models = [with_buffers(torch.full((2,), float(rank))) for rank in range(3)]
    models[1].requires_grad_(False)
    models[2] = Compiled(models[2])
    assert said_later(*models) == ["", "", ""]
    assert said_later(with_buffers(torch.zeros(2))) == [""]


def test_a_buffer_that_one_worker_cannot_average_is_told_of_to_all():
    good, bad = with_buffers(torch.zeros(3, 3)), with_buffers(torch.zeros(1, 3).expand(3, 3))
    own, others = "'x0' has elements that share", "on worker 1 'x0' has elements that share their"
    for sentence, start in zip(said_later(good, bad, good), (others, own, others), strict=True):
        assert sentence.startswith(start)
    assert said_later(bad, good)[1].startswith("on worker 0 'x0' has elements")
    assert all(sentence.startswith(own) for sentence in said_later(bad, bad))


def test_workers_of_shards_that_differ_from_others_in_another_row_are_told():
    """Two rows of two: only the last process has another model, and only in one of its rows."""
    model, met = with_buffers(torch.zeros(2)), Barrier(1)

    class Hearing(Worker):
        """Of one who has heard of others that differ."""

        def all_reduce_mean_(self, x_wn: Tensor) -> None:
            x_wn[:, 16] += 1

        def all_gather(self, x_wt: Tensor) -> Tensor:
            return torch.stack([x_wt, x_wt], 1)

    worker: Any = Hearing(0, [None, None], met)
    with pytest.raises(ValueError, match=r"^other workers' parameters or buffers differ in names"):
        meetings = [Meeting(worker, worker, run)] * 2
        check_still_same_model(model, meetings, torch.device("cpu"))
