"""The one training loop, for real and simulated workers alike.

Shapes: w workers held by this process, b examples of each.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from bagua_algos.communicator import Communicator
from bagua_algos.engine import Engine
from experiments.baselines import DistributedTorchDDP, TorchDDP
from experiments.config import Plan
from experiments.data import Batches, shard
from experiments.tasks.base import PADDING, Split, TaskData

EVALUATION_BATCH = 500
"""Examples of one worker that are evaluated at once."""


class DivergedError(RuntimeError):
    """The loss is NaN or infinite: the run is over, and a miss."""


class Meter:
    """A training clock in seconds and a count of bytes sent; both stand still outside `running`."""

    def __init__(self, read_bytes_sent: Callable[[], int]) -> None:
        self._read_bytes_sent = read_bytes_sent
        self.time_s = 0.0
        self.bytes_sent = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count what happens within."""
        started_s, bytes_before = time.perf_counter(), self._read_bytes_sent()
        yield
        self.bytes_sent += self._read_bytes_sent() - bytes_before
        self.time_s += time.perf_counter() - started_s


class Distributed(Protocol):
    """A model and an optimizer in distributed training: an `Engine`, or one of PyTorch's own."""

    exposed_communication_s: float
    """What training waited for communication that compute did not hide."""

    @property
    def model(self) -> nn.Module:
        """To be called in place of the model that was given."""
        ...

    def consensus(self) -> AbstractContextManager[None]:
        """Within, the model is the one to evaluate; a collective call."""
        ...

    def close(self) -> None:
        """The model and the optimizer are plain again."""
        ...


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one worker's training came to, over `steps` steps; evaluations take no time and no
    bytes.
    """

    steps: int
    time_s: float
    bytes_sent: int
    exposed_communication_s: float
    validation_accuracy: float
    test_accuracy: float


def distribute(
    plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer, communicator: Communicator
) -> Distributed:
    """Hang the plan's algorithm on `model` and `optimizer`."""
    if isinstance(plan.algorithm, TorchDDP):
        return DistributedTorchDDP(model, optimizer, plan.algorithm, communicator)
    return Engine(
        model,
        optimizer,
        plan.algorithm,
        communicator,
        bucket_bytes=plan.bucket_bytes,
        timeout_s=2 * plan.cluster.timeout_s,
    )


def train(
    plan: Plan,
    data: TaskData,
    model: nn.Module,
    communicator: Communicator,
    meter: Meter,
    report: Callable[[dict[str, Any]], None],
) -> Result:
    """Train `model` as planned, on the workers that `communicator` holds.

    Args:
        plan: the run.
        data: all examples; each worker sees its shard.
        model: on the worker axis, `[w, b, ...]` to `[w, b, ...]`.
        communicator: the other workers.
        meter: runs during steps only.
        report: is given rows of `experiments.records.METRICS`.

    Raises:
        DivergedError: the loss is not finite.
        CommunicationError: another worker is gone or silent.
    """
    optimizer = plan.make_optimizer(model.parameters())
    distributed = distribute(plan, model, optimizer, communicator)
    batches = Batches(
        num_examples=len(data.train),
        world_size=plan.workers,
        ranks=communicator.ranks,
        batch_size=plan.batch_size,
        seed=plan.seed,
    )
    rows = _Rows(batches.steps_per_epoch, meter, distributed, report)
    step, accuracy = 0, 0.0
    for step in range(1, plan.max_steps + 1):
        with meter.running():
            indices_wb = batches.indices(step - 1)
            loss_w = _train_step(plan, data.train, indices_wb, distributed, optimizer)
        if step == 1 or step % plan.log_every == 0:
            rows.report("step", step, loss=_finite_mean(loss_w, step))
        if step % plan.eval_every == 0 or step == plan.max_steps:
            accuracy = evaluate(plan, data.validation, distributed, communicator)
            rows.report("evaluation", step, accuracy=accuracy)
            if plan.stop_at_target and accuracy >= plan.target_accuracy:
                break
    test_accuracy = evaluate(plan, data.test, distributed, communicator)
    distributed.close()
    return Result(
        steps=step,
        time_s=meter.time_s,
        bytes_sent=meter.bytes_sent,
        exposed_communication_s=distributed.exposed_communication_s,
        validation_accuracy=accuracy,
        test_accuracy=test_accuracy,
    )


@dataclass(frozen=True)
class _Rows:
    """Rows of metrics, as the meter stands."""

    steps_per_epoch: int
    meter: Meter
    distributed: Distributed
    send: Callable[[dict[str, Any]], None]

    def report(self, kind: str, step: int, **values: float) -> None:
        self.send(
            {
                "kind": kind,
                "step": step,
                "epoch": step / self.steps_per_epoch,
                "time_s": self.meter.time_s,
                "bytes_sent": self.meter.bytes_sent,
                "exposed_communication_s": self.distributed.exposed_communication_s,
                **values,
            }
        )


def _train_step(
    plan: Plan,
    split: Split,
    indices_wb: np.ndarray,
    distributed: Distributed,
    optimizer: torch.optim.Optimizer,
) -> Tensor:
    """One step of every worker held here; returns their losses `[w]`."""
    x_wb, y_wb = _examples(plan, split, indices_wb)
    optimizer.zero_grad()
    loss_w = plan.task.loss(distributed.model(x_wb), y_wb)
    loss_w.sum().backward()  # workers do not mix: each one's gradient is that of its own loss
    optimizer.step()
    return loss_w.detach()


def evaluate(
    plan: Plan, split: Split, distributed: Distributed, communicator: Communicator
) -> float:
    """Accuracy of the consensus model on `split`, each worker evaluating its shard; a collective
    call.
    """
    examples = shard(num_examples=len(split), world_size=plan.workers, ranks=communicator.ranks)
    model = distributed.model
    with distributed.consensus(), torch.no_grad():
        model.eval()
        correct_w = torch.zeros(len(communicator.ranks), 1, dtype=torch.float64)
        for start in range(0, examples.indices.shape[1], EVALUATION_BATCH):
            part = slice(start, start + EVALUATION_BATCH)
            x_wb, y_wb = _examples(plan, split, examples.indices[:, part])
            y_wb[~torch.from_numpy(examples.mask[:, part])] = PADDING
            correct_w += plan.task.num_correct(model(x_wb), y_wb).cpu().unsqueeze(1)
        model.train()
    correct_w = correct_w.to(plan.backend.device)
    communicator.all_reduce_mean_(correct_w)
    return correct_w[0].item() * plan.workers / len(split)


def _examples(plan: Plan, split: Split, indices_wb: np.ndarray) -> tuple[Tensor, Tensor]:
    device = plan.backend.device
    x_wb = torch.from_numpy(split.x[indices_wb]).to(device)
    return plan.task.inputs(x_wb), torch.from_numpy(split.y[indices_wb]).to(device)


def _finite_mean(loss_w: Tensor, step: int) -> float:
    loss = loss_w.mean().item()
    if not np.isfinite(loss):
        raise DivergedError(f"the loss is {loss} at step {step}")
    return loss
