"""Weights that a script changes in ways of which torch keeps no count, through `parameter.data`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bagua_algos.engine.bucket import Bucket
from bagua_algos.engine.consensus import checksum

NUM_STEPS = 8
"""In so many it also looks after an average has replaced the weights, where the sums are two more:
a script that then puts others back does so in every step.
"""
WHILE_IT_TRAVELS = (
    "weights were changed through parameter.data after a forward pass in training mode, at which "
    "their average with other workers' began to travel, and would be lost: change weights before "
    "that forward pass, or after its backward pass and the optimizer's step; and run a forward "
    "pass that trains nothing under torch.no_grad()"
)


class UnseenChanges:
    """Tells whether weights are others than they were, such as when their average began to travel.

    On the CPU alone: on a GPU the host would wait. It takes 4 ms a step for 10 million float32;
    forward and backward of ten layers of as many take 47 with one example, 88 with eight, and one
    copy of them, of which decentralized SGD makes several, 43 (one thread of an AMD EPYC).

    Args:
        sentence: of the error.
    """

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence
        self._sums: list[Tensor] = []

    def note(self, buckets: Sequence[Bucket]) -> None:
        """The weights are to stay as they are now."""
        on_cpu = all(bucket.weights.device.type == "cpu" for bucket in buckets)
        self._sums = [checksum(bucket) for bucket in buckets] if on_cpu else []

    def check(self, buckets: Sequence[Bucket]) -> None:
        """From here on they may change: raise `ValueError` where they have already."""
        if self._sums and not all(map(torch.equal, self._sums, map(checksum, buckets))):
            raise ValueError(self._sentence)
        self.forget()

    def forget(self) -> None:
        """They may change."""
        self._sums = []
