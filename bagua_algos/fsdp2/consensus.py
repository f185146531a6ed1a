"""The mean of all replicas of a sharded model, for a while."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from bagua_algos.communication.communicator import Averager
from bagua_algos.engine.consensus import (
    Run,
    differing,
    outside_inference_mode,
    warn_of_difference,
)
from bagua_algos.fsdp2.bucket import ShardBucket


@contextmanager
def averaged(
    buckets: Sequence[ShardBucket],
    replicas: Averager,
    shards: Averager,
    run: Run,
    write_back: Callable[[], None],
    *,
    kept_equal_by: str | None = None,
) -> Iterator[float]:
    """Within, every replica's weights are the mean over `replicas`; afterwards they are its own.

    Yields the spread of the replicas' weights about the mean: the root of their mean squared
    distance, over the mean's norm, both of all `shards` together. `write_back` is called whenever
    the buckets' weights have changed. `kept_equal_by`: as in `bagua_algos.engine.consensus`.
    """
    if kept_equal_by is not None:
        differs = differing(buckets, replicas, run)
        shards.all_reduce_mean_(differs)
        if not differs.any():
            write_back()
            yield 0.0
            return
    with outside_inference_mode():
        own = [bucket.weights.clone() for bucket in buckets]
        for bucket in buckets:
            run("averaging of weights", lambda b=bucket: replicas.all_reduce_mean_(b.weights))
        means = [bucket.weights for bucket in buckets]
        distances = _squares([x - mean for x, mean in zip(own, means, strict=True)])
        run("averaging of spreads", lambda: replicas.all_reduce_mean_(distances))
        both = torch.cat([distances, _squares(means)], 1)
        shards.all_reduce_mean_(both)
    square, norm = both[0].tolist()
    spread = (square / norm) ** 0.5 if norm else 0.0
    if kept_equal_by is not None:
        warn_of_difference(kept_equal_by, spread)
    write_back()
    try:
        yield spread
    finally:
        for bucket, weights in zip(buckets, own, strict=True):
            bucket.weights.copy_(weights)
        write_back()


def _squares(tensors: Sequence[Tensor]) -> Tensor:
    """The sum of all squares, float64 `[1, 1]`."""
    return torch.stack([x.double().square().sum() for x in tensors]).sum().view(1, 1)
