"""How good the workers' model is, and how far apart they are.

Shapes: w workers held by this process, b examples of each.
"""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bagua_algos.communication.communicator import Averager
from bagua_algos.worker_axis.models import StackedModel
from experiments.plan.plan import Plan
from experiments.tasks.base import PADDING, Split, Task
from experiments.tasks.batches import shard
from experiments.training.distributed import Distributed
from experiments.training.step import examples

BATCH = 500
"""Examples of one worker that are evaluated at once."""


class Evaluation(NamedTuple):
    """Of the mean of the workers' models: its accuracy, its mean loss in nats, and their spread
    about it.
    """

    accuracy: float
    loss: float
    spread: float


NOT_EVALUATED = Evaluation(math.nan, math.nan, math.nan)
"""Of a run that had no step left to take."""


def evaluate(plan: Plan, split: Split, distributed: Distributed, averager: Averager) -> Evaluation:
    """Evaluate the consensus model on `split`, each worker on its shard; a collective call, by
    `averager`.

    Accuracy and loss are means over all labels, of which an example may have several.
    """
    part = shard(num_examples=len(split), world_size=plan.workers, ranks=averager.ranks)
    model = distributed.model
    totals_w2 = torch.zeros(len(averager.ranks), 2, dtype=torch.float64)
    with distributed.consensus(averager) as spread, torch.no_grad(), _alike(model):
        model.eval()
        for start in range(0, part.indices.shape[1], BATCH):
            batch = slice(start, start + BATCH)
            x_wb, y_wb = examples(plan, split, part.indices[:, batch])
            y_wb[~torch.from_numpy(part.mask[:, batch])] = PADDING
            totals_w2 += _totals(plan.task, model(x_wb), y_wb).cpu()
        model.train()
    totals_w2 = totals_w2.to(plan.backend.device)
    averager.all_reduce_mean_(totals_w2)
    accuracy, loss = (totals_w2[0] * plan.workers / split.y.size).tolist()
    return Evaluation(accuracy, loss, spread)


def _alike(model: nn.Module) -> AbstractContextManager[None]:
    """Stacked workers in consensus are one model."""
    return model.alike() if isinstance(model, StackedModel) else nullcontext()


def _totals(task: Task, outputs_wb: Tensor, y_wb: Tensor) -> Tensor:
    """Of each worker's labels, how many are right and the sum of their losses: float64 [w, 2]."""
    num_labels_w = (y_wb != PADDING).flatten(1).sum(1)
    loss_w = task.loss(outputs_wb.float(), y_wb).double()
    num_correct_w = task.num_correct(outputs_wb, y_wb).double()
    return torch.stack([num_correct_w, loss_w * num_labels_w], dim=1)
