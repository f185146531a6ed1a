"""Metrics as sums over labels, exact however examples are shared out: workers add their sums, and
the metric is of the total.

torchmetrics has most of these for one process and one model; here one process may hold the outputs
of all simulated workers, and sums travel by the averager of evaluations, not over the network.

Shapes: w workers held by this process, b examples of each, c classes, k sums; [...] is nothing
where an example has one label, and its places where it has one at each of them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.tasks.base import PADDING, Indices

Sums = Callable[[Tensor, Tensor, Indices], Tensor]
"""Of outputs `[w, b, ..., c]`, labels `[w, b, ...]` and places in the split, as
`experiments.tasks.base.Ratio` has them: float64 `[w, k]`.
"""


@dataclass(frozen=True, kw_only=True)
class Score:
    """How a metric is computed: from the mean loss alone, or from sums of its own."""

    of_loss: Callable[[float], float] | None = None
    sums: Sums | None = None
    of_sums: Callable[[Sequence[float]], float] = lambda sums: _ratio(sums[0], sums[1], math.nan)
    """NaN where there was nothing to score, which reaches no target."""


def _top_5(outputs_wbc: Tensor, y_wb: Tensor, places_wb: Indices) -> Tensor:
    """How many labels are among the five largest outputs, and how many there are."""
    best = outputs_wbc.topk(min(5, outputs_wbc.shape[-1]), -1).indices
    is_there = (best == y_wb.unsqueeze(-1)).any(-1)
    return _counts(is_there, y_wb != PADDING)


def _exact_match(outputs_wbc: Tensor, y_wb: Tensor, places_wb: Indices) -> Tensor:
    """How many examples have all labels right, and how many there are."""
    is_label = (y_wb != PADDING).flatten(2) if y_wb.dim() > 2 else (y_wb != PADDING).unsqueeze(-1)
    is_right = (outputs_wbc.argmax(-1) == y_wb).view(is_label.shape) | ~is_label
    return _counts(is_right.all(-1), is_label.any(-1))


def _f1_sums(outputs_wbc: Tensor, y_wb: Tensor, places_wb: Indices) -> Tensor:
    """Of each class, how often it is right, how often it was said, and how often it is the label:
    `[w, 3c]`.
    """
    num_classes = outputs_wbc.shape[-1]
    is_label = (y_wb != PADDING).flatten(1)
    y, said = y_wb.flatten(1).clamp(min=0), outputs_wbc.argmax(-1).flatten(1)
    per_class = [
        torch.zeros(len(y), num_classes, dtype=torch.float64, device=y.device).scatter_add_(
            1, index, mask.double()
        )
        for index, mask in ((y, is_label & (said == y)), (said, is_label), (y, is_label))
    ]
    return torch.cat(per_class, 1)


def _f1(sums: Sequence[float]) -> float:
    num_classes = len(sums) // 3
    right, said, there = (sums[i * num_classes : (i + 1) * num_classes] for i in range(3))
    each = [_ratio(2 * r, s + t, 0.0) for r, s, t in zip(right, said, there, strict=True)]
    return sum(each) / num_classes


def _counts(is_right: Tensor, is_there: Tensor) -> Tensor:
    """Float64 `[w, 2]`."""
    both = (is_right & is_there, is_there)
    return torch.stack([mask.flatten(1).sum(1).double() for mask in both], 1)


def _ratio(top: float, bottom: float, of_nothing: float) -> float:
    return top / bottom if bottom else of_nothing


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


SCORES = {
    "top_5": Score(sums=_top_5),
    "f1": Score(sums=_f1_sums, of_sums=_f1),
    "exact_match": Score(sums=_exact_match),
    "loss": Score(of_loss=lambda loss: loss),
    "perplexity": Score(of_loss=_exp),
    "bits_per_byte": Score(of_loss=lambda loss: loss / math.log(2)),
}
"""Every metric but accuracy, which each evaluation has."""
