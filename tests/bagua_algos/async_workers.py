"""Runs asynchronous averaging on real gloo workers: `python -m tests.bagua_algos.async_workers
FOLDER 3 surviving`, or `dying`.
"""

import math
import os
import signal
import sys
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bagua_algos
from bagua_algos import AsyncModelAverage, CommunicationError
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.distribute import _engine
from tests.bagua_algos.gloo import fork_workers

NUM_WEIGHTS = 1000
LEARNING_RATE = 2.0**-10


class Puller(nn.Module):
    """Two buckets of weights, whose gradients are all 1."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(NUM_WEIGHTS)) for _ in range(2)])

    def forward(self) -> Tensor:
        return torch.stack([part.sum() for part in self.parts]).sum()


class Worker:
    """One worker that steps at its own pace."""

    def __init__(
        self,
        communicator: ProcessGroupCommunicator,
        *,
        lr: float,
        grad_scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self.rank = communicator.ranks[0]
        self.model = Puller()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)
        self.scaler = grad_scaler or torch.amp.GradScaler("cpu", enabled=False)
        bagua_algos.distribute(
            self.model,
            self.optimizer,
            AsyncModelAverage(interval_ms=0),
            communicator,
            bucket_bytes=1,
            grad_scaler=self.scaler,
        )
        self.engine = _engine(self.model)

    def step(self, sleep_s: float = 0.0, factor: float = 1.0) -> None:
        self.optimizer.zero_grad()
        loss = self.model() * factor
        time.sleep(sleep_s)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def set_weights(self, value: float) -> None:
        with torch.no_grad():
            for part in self.model.parts:
                part.fill_(value)

    @property
    def weights(self) -> Tensor:
        return torch.cat([part.detach() for part in self.model.parts]).clone()

    @property
    def num_rounds(self) -> int:
        return int(self.engine.context.state.num_rounds)


def uneven(communicator: ProcessGroupCommunicator) -> dict[str, Any]:
    """Without learning: weights set by hand, steps of different number and speed, a pause; again,
    the slowest worker now the fastest.
    """
    worker = Worker(communicator, lr=0.0)
    after = []
    for order in (worker.rank, communicator.world_size - 1 - worker.rank):
        worker.set_weights(float(worker.rank))
        for _ in range(5 + 10 * order):
            worker.step(sleep_s=0.003 * (communicator.world_size - order))
        worker.engine.pause()
        after.append((worker.weights, worker.num_rounds))
    bagua_algos.release(worker.model)
    return {"after": after}


def evaluated(communicator: ProcessGroupCommunicator) -> dict[str, Any]:
    """Stops with a round in flight, which some may not have begun: what the workers hold, their
    mean, and what training knows of it afterwards.
    """
    worker = Worker(communicator, lr=LEARNING_RATE)
    state, background = worker.engine.context.state, worker.engine.context.background
    kept, errors = [], []
    for _ in range(5):
        for _ in range(3 + worker.rank):
            worker.step(sleep_s=0.004 * (worker.rank + 1))
        before = worker.weights, worker.num_rounds, bool(state.in_flight)
        worker.engine.stand_still()
        clock_s = background.now_w().item()
        with worker.engine.consensus():
            mean = communicator.all_gather(before[0].unsqueeze(0)).mean(1)[0]
            errors.append((worker.weights - mean).abs().max().item())
            time.sleep(0.02)
        after = worker.weights, worker.num_rounds, bool(state.in_flight)
        stood = background.now_w().item() == clock_s
        kept.append(torch.equal(before[0], after[0]) and before[1:] == after[1:] and stood)
    rounds = worker.num_rounds
    num_steps = 5 * (3 + worker.rank)
    bagua_algos.release(worker.model)
    return {
        "kept": kept,
        "errors": errors,
        "rounds": rounds,
        "weights": worker.weights,
        "num_steps": num_steps,
    }


def learning(communicator: ProcessGroupCommunicator) -> dict[str, Any]:
    """Every weight falls by the learning rate a step, on each worker as often as it steps."""
    worker = Worker(communicator, lr=LEARNING_RATE)
    num_steps = 10 * (worker.rank + 1)
    for _ in range(num_steps):
        worker.step(sleep_s=0.002)
    bagua_algos.release(worker.model)
    return {"weights": worker.weights, "num_steps": num_steps}


def between_steps(communicator: ProcessGroupCommunicator) -> dict[str, Any]:
    """Weights as they are right after a step, and as the next forward finds them, while rounds that
    were in flight have come to their end.
    """
    worker, changes, landings = Worker(communicator, lr=LEARNING_RATE), [], 0
    background = worker.engine.context.background
    for _ in range(200):
        worker.step()
        after = worker.weights
        was_done = background.done_w().all()
        time.sleep(0.005)
        landings += int(background.done_w().all() and not was_done)
        changes.append(not torch.equal(worker.weights, after))
    bagua_algos.release(worker.model)
    return {"changes": changes, "landings": landings, "num_rounds": worker.num_rounds}


def stopped(communicator: ProcessGroupCommunicator) -> dict[str, Any]:
    """Worker 0 stops worker 2 (SIGSTOP), steps 50 times in 1.5 s, and lets it go on."""
    pids = communicator.all_gather(torch.tensor([[os.getpid()]])).flatten().tolist()
    worker = Worker(communicator, lr=LEARNING_RATE)
    for _ in range(10):
        worker.step(sleep_s=0.002)
    before = worker.num_rounds
    try:
        if worker.rank == 0:
            os.kill(pids[2], signal.SIGSTOP)
        for _ in range(50):
            worker.step(sleep_s=0.03)
    finally:
        if worker.rank == 0:
            os.kill(pids[2], signal.SIGCONT)
    while_stopped = worker.num_rounds - before
    for _ in range(10):
        worker.step(sleep_s=0.002)
    bagua_algos.release(worker.model)
    return {"weights": worker.weights, "while_stopped": while_stopped}


def dying(communicator: ProcessGroupCommunicator, folder: Path) -> dict[str, Any]:
    """Worker 2 is gone after ten steps; the others step until they know, and 20 times more.

    They may know before their own tenth step.
    """
    worker = Worker(communicator, lr=LEARNING_RATE)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(10):
            worker.step(sleep_s=0.002)
        if worker.rank == 2:
            torch.save("gone", folder / "2.pt")
            os._exit(0)
        while not caught:
            worker.step(sleep_s=0.002)
        before = worker.weights
        for _ in range(20):
            worker.step()
    fallen = before - worker.weights
    try:
        bagua_algos.release(worker.model)
        error = ""
    except CommunicationError as caught_error:
        error = str(caught_error)
    return {"fallen": fallen, "warnings": [str(w.message) for w in caught], "error": error}


def overflowing(communicator: ProcessGroupCommunicator) -> dict[str, Any]:
    """Worker 1's gradients overflow in two of its steps; it leaves them out by itself."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    worker = Worker(communicator, lr=LEARNING_RATE, grad_scaler=scaler)
    for step in range(20):
        overflows = worker.rank == 1 and step in (3, 4)
        worker.step(factor=math.inf if overflows else 1.0)
    bagua_algos.release(worker.model)
    return {"weights": worker.weights, "scale": scaler.get_scale()}


def surviving(communicator: ProcessGroupCommunicator) -> dict[str, Any]:
    """All cases that no worker dies in."""
    cases = (uneven, evaluated, learning, between_steps, stopped, overflowing)
    return {case.__name__: case(communicator) for case in cases}


if __name__ == "__main__":
    folder, world_size, name = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    main = {"surviving": surviving, "dying": partial(dying, folder=folder)}[name]
    sys.exit(fork_workers(main, folder, world_size))
