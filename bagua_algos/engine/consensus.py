"""The model to evaluate or save: the mean of all workers', for a while."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from bagua_algos.communication.communicator import Averager
from bagua_algos.engine.bucket import Bucket

Run = Callable[[str, Callable[[], None]], None]
"""Runs a job, named for errors, where operations of the workers are allowed, and waits for it."""


@contextmanager
def averaged(buckets: Sequence[Bucket], averager: Averager, run: Run) -> Iterator[float]:
    """Within, every worker's weights are the mean over all workers; afterwards they are its own.

    Yields the spread of the workers' weights about the mean: the root of their mean squared
    distance, over the mean's norm.
    """
    own = [bucket.weights.clone() for bucket in buckets]
    for bucket in buckets:
        run("averaging of weights", lambda b=bucket: averager.all_reduce_mean_(b.weights))
    try:
        yield _spread(buckets, own, averager, run)
    finally:
        for bucket, weights in zip(buckets, own, strict=True):
            bucket.weights.copy_(weights)


def _spread(buckets: Sequence[Bucket], own: list[Tensor], averager: Averager, run: Run) -> float:
    pairs = [(weights, bucket.weights) for weights, bucket in zip(own, buckets, strict=True)]
    squares_w = sum(_squares(x - mean).sum(1, keepdim=True) for x, mean in pairs)
    assert isinstance(squares_w, Tensor)
    run("averaging of spreads", lambda: averager.all_reduce_mean_(squares_w))
    norm = sum(_squares(mean[:1]).sum().item() for _, mean in pairs)
    return (squares_w[0].item() / norm) ** 0.5 if norm else 0.0


def _squares(x_wn: Tensor) -> Tensor:
    """Each element's squared magnitude, float64 `[w, ...]`."""
    real = torch.view_as_real(x_wn) if x_wn.is_complex() else x_wn
    return real.double().square().flatten(1)
