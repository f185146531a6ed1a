"""How good the workers' model is, and how far apart they are.

Shapes: w workers held by this process, b examples of each.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from bagua_algos.communication.communicator import Averager
from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.modes import evaluating
from experiments.plan.plan import Plan
from experiments.tasks.base import PADDING, Batch, Indices, Split, Task
from experiments.tasks.batches import Shard, shard
from experiments.tasks.loading.reading import Request, read_all
from experiments.training.distributed import Distributed
from experiments.training.scores import SCORES, Score
from experiments.training.step import lengths_to_cut, uploaded

BATCH = 500
"""Examples of one worker that are evaluated at once."""
CROPPED_PARTS = 8
"""Of a shard at the least, where batches are cut to their longest examples: the short ones come
first, and pad each other little.
"""


class Evaluation(NamedTuple):
    """Of the mean of the workers' models: its accuracy, its mean loss in nats, their spread about
    it, and its `score` by the target's metric, None where that is accuracy. `own` is by that metric
    too, of the models that the workers have themselves, each on its shard; None where they agree.
    Accuracy and loss of a split in which no label counts are NaN.
    """

    accuracy: float
    loss: float
    spread: float
    score: float | None = None
    own: float | None = None

    @property
    def value(self) -> float:
        """By the target's metric."""
        return self.accuracy if self.score is None else self.score


NOT_EVALUATED = Evaluation(math.nan, math.nan, math.nan)
"""Of a run that had no step left to take, or where nobody asks."""


def evaluate(
    plan: Plan,
    split: Split,
    distributed: Distributed,
    averager: Averager,
    *,
    scores_own: bool = True,
    on_batch: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Evaluate the consensus model on `split`, each worker on its shard; a collective call, by
    `averager`. Where the algorithm lets workers differ, their own models are scored before, too,
    unless not `scores_own`. `on_batch` is called after every batch.

    Accuracy and loss are means over all labels, of which an example may have several; every label
    counts once, however many of them a worker has.
    """
    classifies = plan.task.num_classes is not None
    model = distributed.model
    of_kind = _of_classes if classifies else _of_loss
    measure = partial(of_kind, plan, split, model, averager, on_batch)
    has_own = scores_own and plan.workers > 1 and not plan.algorithm.workers_agree
    own = measure().value if has_own else None
    alike = model.alike() if isinstance(model, StackedModel) else nullcontext()
    with distributed.consensus(averager) as spread, alike:
        return measure()._replace(spread=spread, own=own)


def _of_classes(
    plan: Plan, split: Split, model: nn.Module, averager: Averager, on_batch: Callable[[], None]
) -> Evaluation:
    """What the model comes to as it is; the spread is not looked at, and NaN."""
    score = _score(plan, split)
    part, lengths = _shard(plan, split, averager.ranks)
    totals_wk: Tensor | float = 0.0
    with torch.no_grad(), evaluating(model):
        size, num_places = batch_size(plan, split), part.indices.shape[1]
        slices = [slice(start, start + size) for start in range(0, num_places, size)]
        read = _read(plan, split, part, slices, lengths)
        for (x_wb, y_wb), at in zip(read, slices, strict=True):
            mask = part.mask[:, at]
            y_wb[~torch.from_numpy(mask)] = PADDING
            places = np.where(mask, part.indices[:, at], -1)
            totals_wk = totals_wk + _totals(plan.task, score, model(x_wb), y_wb, places).cpu()
            on_batch()
    assert isinstance(totals_wk, Tensor), "a split has an example"
    totals_wk = totals_wk.to(plan.backend.device)
    averager.all_reduce_mean_(totals_wk)
    sums = _sums(totals_wk[0], plan.workers)
    accuracy, loss = (sums[:2] / sums[2]).tolist()
    if score.of_loss is not None:
        return Evaluation(accuracy, loss, math.nan, score.of_loss(loss))
    value = None if score.sums is None else score.of_sums(sums[3:].tolist())
    return Evaluation(accuracy, loss, math.nan, value)


def _sums(means_k: Tensor, num_workers: int) -> Tensor:
    """Means over workers times their number, which misses a count by a rounding: counts are exact,
    so that a target that is exactly reached is, however many workers there are.
    """
    sums_k = means_k * num_workers
    whole_k = sums_k.round()
    return whole_k.where(sums_k.isclose(whole_k, rtol=1e-12, atol=0.0), sums_k)


def _shard(plan: Plan, split: Split, ranks: tuple[int, ...]) -> tuple[Shard, Indices | None]:
    """Each worker's examples, in the order in which they are evaluated, and the lengths of all to
    which batches are cut, if they are.
    """
    part = shard(num_examples=len(split), world_size=plan.workers, ranks=ranks)
    lengths = lengths_to_cut(plan, split)
    return (part if lengths is None else part.shortest_first(lengths)), lengths


def _read(
    plan: Plan, split: Split, part: Shard, slices: Sequence[slice], lengths: Indices | None
) -> Iterator[Batch]:
    """These places of a shard's examples, on the plan's device, cut as batches of training are."""
    requests = [Request.cut(part.indices[:, at], lengths) for at in slices]
    for batch in read_all(split, plan.seed, plan.loaders, requests):
        yield uploaded(plan, batch)


def batch_size(plan: Plan, split: Split) -> int:
    """Examples of one worker at once: of a Dataset, whose examples may be large, as in training."""
    if split.counts_epochs:
        return plan.batch_size
    if plan.loading.sampler.crop:
        return min(BATCH, math.ceil(len(split) / plan.workers / CROPPED_PARTS))
    return BATCH


def _of_loss(
    plan: Plan, split: Split, model: nn.Module, averager: Averager, on_batch: Callable[[], None]
) -> Evaluation:
    """The same of the mean loss of an example, by the task's own function, to which no padding is
    given: of the shards' last place, some workers have none.
    """
    part, lengths = _shard(plan, split, averager.ranks)
    num_places = part.indices.shape[1]
    size = batch_size(plan, split)
    ends = [*range(size, num_places - 1, size), num_places - 1, num_places]
    sum_w = torch.zeros(len(averager.ranks), dtype=torch.float64)
    with torch.no_grad(), evaluating(model):
        pairs = itertools.pairwise([0, *(end for end in ends if end > 0)])
        slices = [slice(start, end) for start, end in pairs]
        read = _read(plan, split, part, slices, lengths)
        for batch, at in zip(read, slices, strict=True):
            loss_w = plan.task.loss(lambda x_wb: model(x_wb).float(), batch)
            num_w = torch.from_numpy(part.mask[:, at].sum(1))
            sum_w += torch.where(num_w > 0, loss_w.double().cpu() * num_w, 0.0)
            on_batch()
    sum_w = sum_w.to(plan.backend.device)
    averager.all_reduce_mean_(sum_w)
    loss = sum_w[0].item() * plan.workers / len(split)
    return Evaluation(math.nan, loss, math.nan, loss)


def _score(plan: Plan, split: Split) -> Score:
    ratio = plan.task.ratio(plan.target.metric, split)
    return SCORES.get(plan.target.metric, Score()) if ratio is None else Score(sums=ratio)


def _totals(
    task: Task, score: Score, outputs_wb: Tensor, y_wb: Tensor, places_wb: Indices
) -> Tensor:
    """Of each worker's labels, how many are right, the sum of their losses, how many there are, and
    the sums of the score: float64 [w, k].
    """
    num_labels_w = (y_wb != PADDING).flatten(1).sum(1)
    loss_w = task.cross_entropy(outputs_wb.float(), y_wb).double()
    num_correct_w = task.num_correct(outputs_wb, y_wb).double()
    totals_w3 = torch.stack([num_correct_w, loss_w * num_labels_w, num_labels_w.double()], dim=1)
    if score.sums is None:
        return totals_w3
    own = score.sums(outputs_wb, y_wb, places_wb).to(totals_w3.device)
    return torch.cat([totals_w3, own], 1)
