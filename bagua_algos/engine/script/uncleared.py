"""Gradients that no optimizer uses and nobody clears, beside others that train.

A script may train a part of a model alone, by an optimizer of that part, and clear no other
gradients. In plain torch they grow unseen. In a bucket whose codes are of all its parameters they
take more and more of the codes' range, until nothing is left to the gradients that train.
"""

import warnings
from collections.abc import Callable, Iterable, Sequence

from torch import nn
from torch.optim import Optimizer

from bagua_algos.engine.bucket import Bucket
from bagua_algos.engine.parameter_groups import group_of

NUM_STEPS = 8
"""It looks in so many: gradients that are there have to be read, and a GPU waited for."""


class UnclearedGradients:
    """Warns of them, once, in the first steps.

    Args:
        model: knows the parameters' names.
        buckets: all of the model's.
        optimizer: the distributed one.
        is_left: whether a parameter has a gradient yet that an earlier backward pass has given it.
        encoder: the name of the algorithm.
    """

    def __init__(
        self,
        model: nn.Module,
        buckets: Sequence[Bucket],
        optimizer: Optimizer,
        is_left: Callable[[nn.Parameter], bool],
        *,
        encoder: str,
    ) -> None:
        self._encoder = encoder
        self._model, self._optimizer, self._is_left = model, optimizer, is_left
        own = group_of(optimizer)
        mixed = [bucket for bucket in buckets if any(p in own for p in bucket.parameters)]
        self._others = [p for bucket in mixed for p in bucket.parameters if p not in own]
        self._num_steps = 0
        self._is_new = False

    def note_used(self, parameters: Iterable[nn.Parameter]) -> None:
        """Another optimizer has used the gradients of these, which are its own to clear."""
        used = set(parameters)
        self._others = [p for p in self._others if p not in used]

    def note_step(self) -> None:
        """The distributed optimizer has taken a step."""
        self._num_steps += 1
        self._is_new = self._num_steps <= NUM_STEPS

    def look(self, first: nn.Parameter | None) -> None:
        """A backward pass has given its first gradient, to `first`, if any: what that had before is
        not known.
        """
        if not self._is_new or not self._others:
            return
        self._is_new = False
        own = group_of(self._optimizer)
        others = [p for p in self._others if p is not first and p not in own]
        left = next(filter(self._is_left, others), None)
        if left is None:
            return
        self._others = []
        names = {p: name for name, p in self._model.named_parameters()}
        warnings.warn(
            f"{names.get(left, 'a parameter')!r} is in no optimizer that has stepped, and still "
            f"has the gradient of the last step: such gradients grow, and {self._encoder} encodes "
            "them together with others, which lose precision by that: freeze what is not trained "
            "(requires_grad_(False)) before distribute(), or call the model's zero_grad() in place "
            "of the optimizer's",
            stacklevel=2,
        )
