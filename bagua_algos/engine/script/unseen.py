"""Weights that a script changes in ways of which torch keeps no count, through `parameter.data`."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bagua_algos.engine.bucket import Bucket
from bagua_algos.engine.consensus import checksum

NUM_STEPS = 8
"""In so many `PutBack` looks: a script that puts weights back does so in every step."""
_NUM_SAMPLED = 256


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


class PutBack:
    """Tells whether a script undoes an average: it computes with other weights, such as binarized
    ones, and puts those that the last step has left back before the next one.

    On the CPU alone, by the first `_NUM_SAMPLED` elements of each parameter.
    """

    def __init__(self) -> None:
        self._ended: list[Tensor] = []
        self._averaged: list[Tensor] = []

    def note_step(self, buckets: Sequence[Bucket]) -> None:
        """A step has ended, with the weights as they are now."""
        self._ended = _sampled(buckets)

    def note_average(self, buckets: Sequence[Bucket]) -> None:
        """An average has replaced the weights."""
        self._averaged = _sampled(buckets) if self._ended else []

    def find(self, buckets: Sequence[Bucket]) -> nn.Parameter | None:
        """A parameter of which more than half of what the average has changed is as it was when the
        last step ended; None where there is none, or no average since.
        """
        averaged, self._averaged = self._averaged, []
        if not averaged:
            return None
        parameters = [parameter for bucket in buckets for parameter in bucket.parameters]
        found = zip(parameters, self._ended, averaged, _sampled(buckets), strict=True)
        for parameter, before, average, now in found:
            moved = average != before
            if 2 * int((moved & (now == before)).sum()) > int(moved.sum()):
                return parameter
        return None


def _sampled(buckets: Sequence[Bucket]) -> list[Tensor]:
    if any(bucket.weights.device.type != "cpu" for bucket in buckets):
        return []
    views = (view for bucket in buckets for view in bucket.views(bucket.weights))
    return [view.reshape(-1)[:_NUM_SAMPLED].clone() for view in views]
