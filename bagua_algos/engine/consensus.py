"""The model to evaluate or save: the mean of all workers', for a while."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from bagua_algos.communication.communicator import Averager
from bagua_algos.engine.bucket import Bucket

Run = Callable[[str, Callable[[], None]], None]
"""Runs a job, named for errors, where operations of the workers are allowed, and waits for it."""


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Within, tensors are made that may change later and elsewhere, also where a script evaluates
    in `torch.inference_mode()`: that is its thread's, and lanes are in none.
    """
    with torch.inference_mode(mode=False), torch.no_grad():
        yield


@contextmanager
def averaged(
    buckets: Sequence[Bucket],
    averager: Averager,
    run: Run,
    put_back: Callable[[], None],
    *,
    kept_equal_by: str | None = None,
) -> Iterator[float]:
    """Within, every worker's weights are the mean over all workers; afterwards they are its own.

    Yields the spread of the workers' weights about the mean: the root of their mean squared
    distance, over the mean's norm. `put_back` is called when the buckets hold each worker's own
    again, for parameters that have got other memory meanwhile. Where an algorithm keeps the weights
    equal, its name says so: if they are, nothing is averaged; if not, a warning tells.
    """
    if kept_equal_by is not None and not differing(buckets, averager, run).any():
        yield 0.0
        return
    with outside_inference_mode():
        own = [bucket.weights.clone() for bucket in buckets]
    try:
        with outside_inference_mode():
            for bucket in buckets:
                run("averaging of weights", lambda b=bucket: averager.all_reduce_mean_(b.weights))
            spread = _spread(buckets, own, averager, run)
        if kept_equal_by is not None:
            warn_of_difference(kept_equal_by, spread)
        yield spread
    finally:
        for bucket, weights in zip(buckets, own, strict=True):
            bucket.weights.copy_(weights)
        put_back()


@outside_inference_mode()
def differing(buckets: Sequence[Bucket], averager: Averager, run: Run) -> Tensor:
    """The share of workers whose weights have another checksum than worker 0's, float32 `[w, 1]`: 0
    where all are equal to the bit. A collective call; 8 bytes a bucket travel.
    """
    own_wb = torch.stack([checksum(bucket) for bucket in buckets], 1)
    first_wb = own_wb.clone()
    run("comparison of weights", lambda: averager.broadcast_(first_wb))
    differs_w = (own_wb != first_wb).any(1, keepdim=True).float()
    run("comparison of weights", lambda: averager.all_reduce_mean_(differs_w))
    return differs_w


def warn_of_difference(algorithm: str, spread: float) -> None:
    """One sentence where workers differ and should not."""
    warnings.warn(
        f"the workers' weights differ by {spread:.1g} of their norm, and {algorithm} keeps them "
        "equal: whatever else changes weights has to do the same on every worker (more than 1e-6 "
        "is no rounding of unlike processors); what is evaluated or saved is their mean",
        stacklevel=2,
    )


def checksum(bucket: Bucket) -> Tensor:
    """The sum of the weights' bits as integers of 64, int64 `[w]`: 1 ms for 10 million float32."""
    weights = bucket.weights
    real = torch.view_as_real(weights).flatten(1) if weights.is_complex() else weights
    return real.view(torch.int64).sum(1)


def _spread(buckets: Sequence[Bucket], own: list[Tensor], averager: Averager, run: Run) -> float:
    pairs = [(weights, bucket.weights) for weights, bucket in zip(own, buckets, strict=True)]
    squares_w = sum(_distances(x, mean) for x, mean in pairs)
    assert isinstance(squares_w, Tensor)
    run("averaging of spreads", lambda: averager.all_reduce_mean_(squares_w))
    norm = sum(_squares(mean[:1]).sum().item() for _, mean in pairs)
    return (squares_w[0].item() / norm) ** 0.5 if norm else 0.0


def _distances(x_wn: Tensor, mean_wn: Tensor) -> Tensor:
    """Each worker's squared distance from the mean, float64 `[w, 1]`; one worker after the other,
    so that what is computed on the way fits into a processor's cache.
    """
    rows = zip(x_wn.split(1), mean_wn.split(1), strict=True)
    return torch.stack([_squares(x - mean).sum(1) for x, mean in rows])


def _squares(x_wn: Tensor) -> Tensor:
    """Each element's squared magnitude, float64 `[w, ...]`."""
    real = torch.view_as_real(x_wn) if x_wn.is_complex() else x_wn
    return real.double().square().flatten(1)
