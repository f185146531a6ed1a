"""One training step of every worker held by this process.

Shapes: w workers held by this process, b examples of each.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.profiler import record_function

from bagua_algos.communication.communicator import Communicator
from bagua_algos.engine.step_observer import StepObserver
from bagua_algos.worker_axis.inputs import Inputs, any_of, each
from bagua_algos.worker_axis.models import StackedModel
from experiments.plan import schedules
from experiments.plan.plan import Plan
from experiments.tasks.base import PADDING, Batch, Classification, Indices, Model, Split
from experiments.tasks.batches import Batches
from experiments.tasks.loading.reading import Reading, Request
from experiments.tasks.own.splits import DatasetSplit
from experiments.training.distributed import Distributed, distribute
from experiments.training.trace import TraceRecorder
from host.errors import UserError
from kernels.upload import upload


def examples(plan: Plan, split: Split, indices_wb: np.ndarray, longest: int | None = None) -> Batch:
    """The model's inputs `[w, b, ...]` and the labels `[w, b]`, on the plan's device; of the first
    `longest` places of an example, None: of all.
    """
    return uploaded(plan, split.batch(indices_wb, longest, plan.seed))


def uploaded(plan: Plan, batch: Batch) -> Batch:
    """What was stored, as the model takes it, on the plan's device."""
    x_wb, y_wb = batch
    x_wb = each(lambda x: upload(x, plan.backend.device), x_wb)
    return plan.task.inputs(x_wb), upload(y_wb, plan.backend.device)


def losses(plan: Plan, model: nn.Module, batch: Batch, divisors_w: Tensor | None = None) -> Tensor:
    """Each worker's loss of a micro-batch in the plan's precision `[w]`, to be differentiated.

    Divided by `divisors_w`, so that those of a batch add up to its mean; None: by their number.
    """
    x_wb, y_wb = batch
    device, dtype = any_of(x_wb).device.type, getattr(torch, plan.precision)

    def loss(compute: Model, rows: slice = slice(None)) -> Tensor:
        def in_precision(x_wb: Inputs) -> Tensor:
            with torch.autocast(device, dtype, enabled=dtype is not torch.float32):
                outputs_wb = compute(x_wb)
            return outputs_wb.float()

        own = each(lambda x: x[rows], x_wb), y_wb[rows]
        divisor = plan.accumulate if divisors_w is None else divisors_w[rows]
        return plan.task.loss(in_precision, own) / divisor

    # The loss of float16 has to be scaled before a backward pass begins.
    at_once = isinstance(model, StackedModel) and dtype is not torch.float16
    with _telling_of_nothing_to_train(plan):
        losses_w = model(x_wb, loss) if at_once else loss(model)
        if torch.is_grad_enabled() and not losses_w.requires_grad:
            raise RuntimeError(f"the loss {_NO_GRAD}")
    return losses_w


_NO_GRAD = "does not require grad"
"""In torch's words of a loss that nothing depends on, which vmap and parts descend at once."""


@contextmanager
def _telling_of_nothing_to_train(plan: Plan) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if _NO_GRAD not in str(error):
            raise
        raise UserError(
            f"the loss of task={plan.names['task']} depends on no parameter of "
            f"model={plan.names['model']} that is trained: look for a detach(), a no_grad(), or a "
            "loss that leaves the outputs out"
        ) from error


def make_scaler(plan: Plan) -> GradScaler:
    """Keeps float16's gradients in its range; does nothing in another precision."""
    return GradScaler(plan.backend.device, enabled=plan.precision == "float16")


UNLABELLED = 1_000
"""Examples without a label, at most, that a process reads before the first that has one."""


@dataclass
class Labels:
    """Whether examples have had a label yet, of a Dataset of which nobody knows before."""

    dataset: str
    most: int = UNLABELLED
    """Examples that may have none, one after the other from the first on."""
    num_read: int = 0
    are_there: bool = False

    def check(self, y_wb: Tensor) -> None:
        """Take note of a batch `[w, b, ...]`. Raises UserError once `most` were without a label:
        the loss is 0, and nothing would be learnt.
        """
        if self.are_there:
            return
        self.are_there = bool((y_wb != PADDING).any())
        self.num_read += y_wb.shape[0] * y_wb.shape[1]
        if not self.are_there and self.num_read >= self.most:
            raise UserError(
                f"none of the first {self.num_read} examples of {self.dataset} has a label that "
                "counts, so nothing is learnt: give them labels"
            )


STEP = "training step"
"""Its name in a profiler's trace."""


@dataclass
class Step:
    """Forward and backward by micro-batches in the plan's precision, clipping, the optimizer, the
    learning rate.
    """

    plan: Plan
    reading: Reading
    distributed: Distributed
    optimizer: torch.optim.Optimizer
    scaler: GradScaler
    lengths: np.ndarray | None = None
    """Of the examples, where batches are cut to the longest of theirs."""
    weights_w: Tensor | None = None
    """Of the workers' losses in their mean, where not all count alike."""
    weighs_labels: bool = False
    """Whether micro-batches may have unequally many labels, over which the loss is a mean."""
    labels: Labels | None = None
    """Where examples may turn out to have none."""
    schedule: torch.optim.lr_scheduler.LRScheduler = field(init=False)

    def __post_init__(self) -> None:
        schedules.scale_rates_(self.optimizer, self.plan.lr_scale)
        self.schedule = self.plan.make_schedule(self.optimizer)

    def __call__(self, indices_wb: np.ndarray) -> Tensor:
        """Take the step on the examples `indices_wb`; returns each worker's loss before it `[w]`.

        The gradient is that of the mean over the batch, however many micro-batches it is cut into:
        over its labels where they are classes. A loss of the task's own is the mean of those of the
        micro-batches.
        On a GPU the step is enqueued and the host waits for none of it, but for a `GradScaler`.
        Raises `UserError` where the schedule has no further rate.
        """
        with record_function(STEP):
            return self._take(indices_wb)

    def read_ahead(self, batches: Batches, start: int) -> None:
        """Have the examples of step `start` and all later ones read before they are needed, where
        there are processes for it.
        """
        if not self.reading.is_ahead:
            self.reading.expect(
                self._request(part)
                for step in itertools.count(start)
                for part in self._micro_batches(batches.indices(step))
            )

    def _micro_batches(self, indices_wb: np.ndarray) -> list[np.ndarray]:
        return np.split(indices_wb, self.plan.accumulate, axis=1)

    def _request(self, indices_wb: np.ndarray) -> Request:
        return Request.cut(indices_wb, self.lengths)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the optimizer's."""
        return {"schedule": self.schedule.state_dict(), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from another's `state_dict`."""
        self.schedule.load_state_dict(state_dict["schedule"])
        self.scaler.load_state_dict(state_dict["scaler"])

    def _take(self, indices_wb: np.ndarray) -> Tensor:
        self.optimizer.zero_grad()
        last = self.plan.accumulate - 1
        losses_w = [
            self._accumulate(*part, is_last=index == last)
            for index, part in enumerate(self._parts(indices_wb))
        ]
        if self.plan.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            clip_norms_(self.optimizer, len(indices_wb), self.plan.clip_norm)
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.scaler.get_scale() >= scale:  # else a gradient has overflowed: no step was taken
            schedules.step(self.schedule)
        return torch.stack(losses_w).sum(0)

    def _parts(self, indices_wb: np.ndarray) -> Iterator[tuple[Batch, Tensor | None]]:
        """The micro-batches, and what the loss of each is divided by; each is read when its turn
        comes, but where the labels of all have to be counted first.
        """
        requests = map(self._request, self._micro_batches(indices_wb))
        batches = map(self.reading.batch, requests)
        if not self.weighs_labels:
            return ((batch, None) for batch in batches)
        read = list(batches)
        return zip(read, _divisors([y_wb for _, y_wb in read]), strict=True)

    def _accumulate(self, read: Batch, divisors_w: Tensor | None, *, is_last: bool) -> Tensor:
        device = self.plan.backend.device
        if self.labels is not None:
            self.labels.check(read[1])
        batch = uploaded(self.plan, read)
        divisors_w = None if divisors_w is None else upload(divisors_w, device)
        with nullcontext() if is_last else self.distributed.no_sync():
            loss_w = losses(self.plan, self.distributed.model, batch, divisors_w)
            weighted_w = loss_w if self.weights_w is None else loss_w * self.weights_w
            # Workers do not mix: each one's gradient is of its own loss.
            self.scaler.scale(weighted_w.sum()).backward()
        return loss_w.detach()


def make_step(
    plan: Plan,
    split: Split,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    communicator: Communicator,
    observer: StepObserver | None = None,
) -> Step:
    """The steps of the plan's algorithm, which is hung on `model` and `optimizer` (see
    `experiments.training.distributed.distribute`).
    """
    scaler = make_scaler(plan)
    distributed = distribute(plan, model, optimizer, communicator, scaler, observer)
    lengths = lengths_to_cut(plan, split)
    on_wait = {"on_wait": observer.on_data} if isinstance(observer, TraceRecorder) else {}
    reading = Reading(split, plan.seed, plan.loaders, **on_wait)
    weights_w, weighs_labels = _weights(plan, split, communicator), _weighs_labels(plan, split)
    labels = _labels(plan, split)
    return Step(
        plan, reading, distributed, optimizer, scaler, lengths, weights_w, weighs_labels, labels
    )


def lengths_to_cut(plan: Plan, split: Split) -> Indices | None:
    """Of the examples, where batches are cut to the longest of theirs; None: they are not."""
    return plan.task.lengths(split) if plan.loading.sampler.crop else None


def _averages_labels(plan: Plan) -> bool:
    return isinstance(plan.task, Classification) and plan.task.averages_labels


def _weighs_labels(plan: Plan, split: Split) -> bool:
    """Arrays tell whether all their places have labels; of a Dataset nobody knows before."""
    if plan.accumulate == 1 or not _averages_labels(plan):
        return False
    return split.counts_epochs or bool((split.y == PADDING).any())


def _labels(plan: Plan, split: Split) -> Labels | None:
    if not (isinstance(split, DatasetSplit) and _averages_labels(plan)):
        return None
    return Labels(type(split.dataset).__name__, min(UNLABELLED, len(split)))


def _divisors(labels: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """What the means over the `labels` [w, b, ...] of each micro-batch are divided by `[w]`, to add
    up to the mean over all; None where it is their number for all.
    """
    counts_aw = torch.stack([(y_wb != PADDING).flatten(1).sum(1) for y_wb in labels])
    if (counts_aw == counts_aw[0]).all():
        return [None] * len(labels)
    # No label has a loss of 0, which an infinite divisor leaves as it is.
    return list(counts_aw.sum(0).clamp(min=1) / counts_aw)


def _weights(plan: Plan, split: Split, communicator: Communicator) -> Tensor | None:
    shares = plan.shares(split) if plan.loading.has_weights else None
    if shares is None:
        return None
    weights_w = torch.from_numpy(shares.weights[list(communicator.ranks)])
    return weights_w.float().to(plan.backend.device)


def clip_norms_(optimizer: torch.optim.Optimizer, num_held: int, max_norm: float) -> None:
    """Scale each worker's gradients to a norm of at most `max_norm`, as
    `torch.nn.utils.clip_grad_norm_` does one worker's.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    gradients = [p.grad for p in parameters if p.grad is not None]
    norms_w = torch.stack([g.reshape(num_held, -1).norm(dim=1) for g in gradients]).norm(dim=0)
    scale_w = (max_norm / (norms_w + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        if num_held == 1:  # of any shape and order of its dimensions
            gradient.mul_(scale_w[0])
        else:
            gradient.mul_(scale_w.view(-1, *[1] * (gradient.dim() - 1)))
