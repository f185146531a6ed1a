"""Weights that a script changes in ways of which torch keeps no count, through `parameter.data`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from bagua_algos.engine.bucket import Bucket
from bagua_algos.engine.consensus import checksum


class UnseenChanges:
    """Tells whether weights are others than when their average began to travel.

    On the CPU alone: on a GPU the host would wait. It takes 4 ms a step for 10 million float32;
    forward and backward of ten layers of as many take 47 with one example, 88 with eight, and one
    copy of them, of which decentralized SGD makes several, 43 (one thread of an AMD EPYC).
    """

    def __init__(self) -> None:
        self._sums: list[Tensor] = []

    def note(self, buckets: Sequence[Bucket]) -> None:
        """The average of the weights as they are now begins to travel."""
        on_cpu = all(bucket.weights.device.type == "cpu" for bucket in buckets)
        self._sums = [checksum(bucket) for bucket in buckets] if on_cpu else []

    def check(self, buckets: Sequence[Bucket]) -> None:
        """It is about to replace the weights: raise `ValueError` where these have changed since."""
        sums, self._sums = self._sums, []
        if sums and not all(map(torch.equal, sums, map(checksum, buckets))):
            raise ValueError(
                "weights were changed through parameter.data after a forward pass in training "
                "mode, at which their average with other workers' began to travel, and would be "
                "lost: change weights before that forward pass, or after its backward pass and "
                "the optimizer's step; and run a forward pass that trains nothing under "
                "torch.no_grad()"
            )
