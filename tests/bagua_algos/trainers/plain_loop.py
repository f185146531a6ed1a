"""What every trainer's training is compared with: the same steps in a loop of one's own."""

import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import DataLoader

import bagua_algos
from bagua_algos import Algorithm, Decentralized, LocalSGD, QAdam
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.communication.stripes import Stripes
from bagua_algos.compressors.sign_scale import SignScale
from bagua_algos.data import LoadBalancingDistributedSampler
from bagua_algos.outer_optimizer import Nesterov

Weights = dict[str, Tensor]
Batch = dict[str, Tensor]

ACCUMULATE = 2
CLIP_NORM = 0.1
NUM_EPOCHS = 3
NUM_BATCHES = 6
"""Of an epoch, which has half as many steps."""
BATCH_SIZE = 8
STREAMS = 3


class Regression(nn.Module):
    """Learns products of its inputs; returns what models of transformers return."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Linear(5, 11), nn.BatchNorm1d(11), nn.Tanh(), nn.Linear(11, 3)
        )

    def forward(self, x: Tensor, labels: Tensor) -> Batch:
        y_b = self.layers(x)
        return {"loss": F.mse_loss(y_b, labels), "logits": y_b}


class Spare(Regression):
    """Has a layer that no worker ever uses."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(3, 3)


class ScheduleFreeSGD(SGD):
    """Has the methods by which a schedule-free optimizer swaps its weights."""

    def train(self) -> None: ...

    def eval(self) -> None: ...


def make_sgd(model: nn.Module) -> Optimizer:
    return SGD(model.parameters(), lr=0.1, momentum=0.9)


def make_adam(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=0.01)


ALGORITHMS: dict[str, tuple[Algorithm, Callable[[nn.Module], Optimizer]]] = {
    "decentralized": (Decentralized(), make_sgd),
    "qadam": (QAdam(warmup_steps=2, compressor=SignScale(), error_feedback=True), make_adam),
    "local_sgd": (LocalSGD(interval=2, outer=Nesterov()), make_sgd),
}
"""One each that acts at the beginning of forward, of the step, and at its end. After an epoch of 3
steps each has something to remember, and after that one and the last the workers of two differ.
"""


def as_torchrun_does(communicator: ProcessGroupCommunicator) -> int:
    """Tell this process in its environment which worker it is, and return it."""
    rank, world_size = str(communicator.ranks[0]), str(communicator.world_size)
    os.environ |= {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": "0",
        "WORLD_SIZE": world_size,
        "LOCAL_WORLD_SIZE": world_size,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
        "OMP_NUM_THREADS": "1",
        "TORCHELASTIC_RUN_ID": "tests",
    }
    return communicator.ranks[0]


def error_of(refused: Callable[[], Any]) -> str:
    """The sentence with which it is refused."""
    try:
        refused()
    except ValueError as error:
        return str(error)
    raise AssertionError("it was not refused")


def examples(rank: int) -> list[Batch]:
    """Worker `rank`'s examples of an epoch, in the order in which they come."""
    generator = torch.Generator().manual_seed(rank)
    x_mb = torch.randn(NUM_BATCHES * BATCH_SIZE, 5, generator=generator)
    return [{"x": x, "labels": x[:3] * x[4]} for x in x_mb]


def batches(examples: list[Batch]) -> Iterator[Batch]:
    """The batches of an epoch."""
    for first in range(0, len(examples), BATCH_SIZE):
        part = examples[first : first + BATCH_SIZE]
        yield {key: torch.stack([example[key] for example in part]) for key in part[0]}


def balanced() -> DataLoader[Batch]:
    """Deals one worker's examples to all by their first inputs."""
    data = examples(0)
    costs = [abs(float(example["x"][0])) for example in data]
    return DataLoader(data, BATCH_SIZE, sampler=LoadBalancingDistributedSampler(data, costs))


def weights(model: nn.Module) -> Weights:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def over_streams(train: Callable[[], Weights]) -> Weights:
    """What `train` returns, whose operations are striped however small they are; raises unless some
    had a part for each of `STREAMS`.
    """
    cut, numbers = Stripes._parts, set()

    def cut_smaller(stripes: Stripes, x: Tensor) -> Any:
        stripes._smallest_part_bytes = 4
        parts = cut(stripes, x)
        numbers.add(len(parts))
        return parts

    with mock.patch.object(Stripes, "_parts", cut_smaller):
        trained = train()
    assert STREAMS in numbers, numbers
    return trained


def train(name: str, rank: int) -> Weights:
    """The weights of this worker after all epochs by one of `ALGORITHMS`."""
    algorithm, make_optimizer = ALGORITHMS[name]
    model = Regression()

    def loss(batch: Batch, of_step: list[Batch]) -> Tensor:
        return model(**batch)["loss"] / len(of_step)

    return train_by(algorithm, model, make_optimizer(model), loss, examples(rank))


def train_by(
    algorithm: Algorithm,
    model: nn.Module,
    optimizer: Optimizer,
    loss: Callable[[Batch, list[Batch]], Tensor],
    examples: list[Batch],
) -> Weights:
    """The weights of this worker after all epochs; `loss` is of a batch, among those of a step."""
    bagua_algos.distribute(model, optimizer, algorithm)
    for _ in range(NUM_EPOCHS):
        epoch = list(batches(examples))
        for first in range(0, len(epoch), ACCUMULATE):
            of_step = epoch[first : first + ACCUMULATE]
            optimizer.zero_grad()
            with bagua_algos.no_sync(model):
                for batch in of_step[:-1]:
                    loss(batch, of_step).backward()
            loss(of_step[-1], of_step).backward()
            nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
    own = weights(model)
    bagua_algos.release(model)
    return own
