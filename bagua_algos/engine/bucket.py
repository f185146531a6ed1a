"""Flat storage: parameters and their gradients laid out in few padded `[w, n]` tensors.

A model's parameters become views of its buckets' weights, their gradients views of the buckets'
gradients, so one message, one kernel or one optimizer step serves many parameters, and nothing is
packed or unpacked.

Shape suffixes: w workers held by this process, n elements of a bucket with its padding.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bagua_algos.communication.primitives import CHUNK_ALIGNMENT
from bagua_algos.engine.script.own_storage import move_into


@dataclass(frozen=True, eq=False, kw_only=True)
class Bucket:
    """Parameters that travel together, in the order in which backward is expected to finish them.

    `weights` and `gradients` are `[w, n]`; the first `numel` columns are the parameters, each from
    its `starts` on, one after the other; the rest is padding, so that n divides into one aligned
    chunk a worker. Between parameters there may be gaps of zeros once they have been laid out anew.
    """

    index: int
    parameters: tuple[nn.Parameter, ...]
    starts: tuple[int, ...]
    numel: int
    weights: Tensor
    gradients: Tensor
    memory_formats: tuple[torch.memory_format, ...]

    def adopt_weights(self) -> None:
        """Copy the parameters in and make them views of `weights`."""
        with torch.no_grad():
            for parameter, view in zip(self.parameters, self.views(self.weights), strict=True):
                view.copy_(parameter)
                move_into(parameter, view)

    def end_moment(self, moment: str) -> None:
        """An algorithm has acted at `moment`, the name of a method of `Algorithm`, and may have
        changed `weights`. Nothing is to be done where parameters are views of them.
        """

    def gradient_views(self) -> list[Tensor]:
        """The places of the parameters' gradients in `gradients`, in the order of `parameters`."""
        return self.views(self.gradients)

    def place_gradients(self) -> None:
        """Give each parameter its place in `gradients` for its gradient, where no backward does."""
        for parameter, view in zip(self.parameters, self.gradient_views(), strict=True):
            parameter.grad = view

    def copy_gradients_(self, views: list[Tensor], gradients: list[Tensor]) -> None:
        """Write `gradients` to some of `gradient_views()`."""
        torch._foreach_copy_(views, gradients)  # pyright: ignore[reportPrivateImportUsage]

    def views(self, flat_wn: Tensor) -> list[Tensor]:
        """Each parameter's part of a tensor that is laid out as `weights` is, in the parameter's
        shape and, where it was channels_last when the bucket was built, in that order.
        """
        num_workers, views = flat_wn.shape[0], []
        parts = zip(self.parameters, self.starts, self.memory_formats, strict=True)
        for parameter, start, memory_format in parts:
            numel = parameter.numel() // num_workers
            flat_wk = flat_wn[:, start : start + numel]
            if memory_format is torch.contiguous_format:
                views.append(flat_wk.view(parameter.shape))
            else:
                first, channels, *places = parameter.shape
                views.append(flat_wk.view(first, *places, channels).movedim(-1, 1))
        return views


def build_buckets(
    parameters: Iterable[nn.Parameter], *, num_held: int, world_size: int, bucket_bytes: int
) -> list[Bucket]:
    """Lay out all trainable `parameters` in buckets, last parameter first, as backward finishes
    them.

    A bucket is closed once it holds `bucket_bytes` bytes a worker; a new one also starts where
    dtype or device changes. Every parameter has `num_held` workers' values in its first dimension
    if `num_held` > 1, and is its own only worker's otherwise. Raises `ValueError` where there is
    nothing to train.
    """
    trainable = [p for p in parameters if p.requires_grad]
    if not trainable:
        raise ValueError("the model has no parameter that requires a gradient")
    groups = grouped(reversed(trainable), num_held=num_held, bucket_bytes=bucket_bytes)
    buckets = [
        _empty_bucket(index, group, packed(group, num_held), num_held, world_size)
        for index, group in enumerate(groups)
    ]
    for bucket in buckets:
        bucket.adopt_weights()
    return buckets


Groups = list[tuple[nn.Parameter, ...]]
"""The parameters of each bucket."""


def grouped(parameters: Iterable[nn.Parameter], *, num_held: int, bucket_bytes: int) -> Groups:
    """Share `parameters` out among buckets, in their order. A bucket is closed once it holds
    `bucket_bytes` bytes a worker, and where dtype or device changes.
    """
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes must be at least 1, got {bucket_bytes}")
    groups: list[list[nn.Parameter]] = []
    filled = bucket_bytes
    for parameter in parameters:
        if filled >= bucket_bytes or not _same_storage(groups[-1][0], parameter):
            groups.append([])
            filled = 0
        groups[-1].append(parameter)
        filled += parameter.numel() // num_held * parameter.element_size()
    return [tuple(group) for group in groups]


def lay_out(
    groups: Groups,
    phases: Mapping[nn.Parameter, int],
    *,
    world_size: int,
    device: torch.device | None = None,
) -> list[Bucket]:
    """Buckets of one worker's parameters, which are not in them yet, on `device`, or on theirs.

    A parameter begins at a column that is its phase modulo `CHUNK_ALIGNMENT`. So its address is
    aligned as it was: kernels of torch round a vector's products with a matrix by that.
    """
    buckets = []
    for index, group in enumerate(groups):
        starts, stop = [], 0
        for parameter in group:
            starts.append(stop + (phases[parameter] - stop) % CHUNK_ALIGNMENT)
            stop = starts[-1] + parameter.numel()
        buckets.append(_empty_bucket(index, group, tuple(starts), 1, world_size, device))
    return buckets


def phases_of(buckets: Iterable[Bucket]) -> dict[nn.Parameter, int]:
    """The column at which each parameter begins, modulo `CHUNK_ALIGNMENT`."""
    starts = [zip(bucket.parameters, bucket.starts, strict=True) for bucket in buckets]
    return {p: start % CHUNK_ALIGNMENT for pairs in starts for p, start in pairs}


def packed(parameters: Sequence[nn.Parameter], num_held: int) -> tuple[int, ...]:
    """Where parameters begin that follow each other without gaps."""
    sizes = [parameter.numel() // num_held for parameter in parameters]
    return tuple(itertools.accumulate(sizes[:-1], initial=0))


def padded_numel(numel: int, world_size: int) -> int:
    """The columns of a bucket of `numel` elements: one aligned chunk for each worker, or more."""
    unit = world_size * CHUNK_ALIGNMENT
    return max(1, -(-numel // unit)) * unit


def flat_storage(buckets: Iterable[Bucket]) -> list[Tensor]:
    """The weights and gradients of one worker's buckets as flat tensors [n]; none for several
    workers, whose parameters are no neighbours in memory.
    """
    own = [bucket for bucket in buckets if len(bucket.weights) == 1]
    return [flat[0] for bucket in own for flat in (bucket.weights, bucket.gradients)]


class Move:
    """From the buckets `old` to the buckets `new`, of the same parameters of one worker, for what
    is laid out as they are.
    """

    def __init__(self, old: Sequence[Bucket], new: Sequence[Bucket]) -> None:
        self.old, self.new = old, new

    def carry(self, tensors: Sequence[Tensor], *, padded: bool = True) -> list[Tensor]:
        """Tensors of the old buckets, one each, `[1, n]` or without padding `[1, numel]`, as
        tensors of the new ones; what belongs to no parameter is zero.
        """
        parts = {
            parameter: view
            for bucket, flat in zip(self.old, tensors, strict=True)
            for parameter, view in zip(bucket.parameters, bucket.views(flat), strict=True)
        }
        carried = []
        for bucket in self.new:
            first = parts[bucket.parameters[0]]
            flat = torch.zeros_like(bucket.weights, dtype=first.dtype, device=first.device)
            flat = flat if padded else flat[:, : bucket.numel].contiguous()
            for parameter, view in zip(bucket.parameters, bucket.views(flat), strict=True):
                view.copy_(parts[parameter])
            carried.append(flat)
        return carried


def _memory_format(parameter: Tensor) -> torch.memory_format:
    """Channels_last, where the parameter is that and nothing plainer."""
    for memory_format, dims in ((torch.channels_last, 4), (torch.channels_last_3d, 5)):
        is_last = parameter.dim() == dims and parameter.is_contiguous(memory_format=memory_format)
        if is_last and not parameter.is_contiguous():
            return memory_format
    return torch.contiguous_format


def _same_storage(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.device == b.device


def _empty_bucket(
    index: int,
    parameters: tuple[nn.Parameter, ...],
    starts: tuple[int, ...],
    num_held: int,
    world_size: int,
    device: torch.device | None = None,
) -> Bucket:
    numel = starts[-1] + parameters[-1].numel() // num_held
    padded = padded_numel(numel, world_size)
    storage = torch.zeros(
        *(2, num_held, padded), dtype=parameters[0].dtype, device=device or parameters[0].device
    )
    return Bucket(
        index=index,
        parameters=parameters,
        starts=starts,
        numel=numel,
        weights=storage[0],
        gradients=storage[1].data,  # which counts its own changes, as `BackwardTracker` asks for
        memory_formats=tuple(
            _memory_format(p) if num_held == 1 else torch.contiguous_format for p in parameters
        ),
    )
