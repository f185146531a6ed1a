"""How good the workers' model is, and how far apart they are.

Shapes: w workers held by this process, b examples of each.
"""

from typing import NamedTuple

import torch

from bagua_algos.communicator import Communicator
from experiments.config import Plan
from experiments.data import shard
from experiments.distributed import Distributed
from experiments.step import examples
from experiments.tasks.base import PADDING, Split

BATCH = 500
"""Examples of one worker that are evaluated at once."""


class Evaluation(NamedTuple):
    """Of the mean of the workers' models: its accuracy, and their spread about it."""

    accuracy: float
    spread: float


def evaluate(
    plan: Plan, split: Split, distributed: Distributed, communicator: Communicator
) -> Evaluation:
    """Evaluate the consensus model on `split`, each worker on its shard; a collective call.

    The accuracy is the share of all labels, of which an example may have several.
    """
    part = shard(num_examples=len(split), world_size=plan.workers, ranks=communicator.ranks)
    model = distributed.model
    correct_w = torch.zeros(len(communicator.ranks), 1, dtype=torch.float64)
    with distributed.consensus() as spread, torch.no_grad():
        model.eval()
        for start in range(0, part.indices.shape[1], BATCH):
            batch = slice(start, start + BATCH)
            x_wb, y_wb = examples(plan, split, part.indices[:, batch])
            y_wb[~torch.from_numpy(part.mask[:, batch])] = PADDING
            correct_w += plan.task.num_correct(model(x_wb), y_wb).cpu().unsqueeze(1)
        model.train()
    correct_w = correct_w.to(plan.backend.device)
    communicator.all_reduce_mean_(correct_w)
    return Evaluation(correct_w[0].item() * plan.workers / split.y.size, spread)
