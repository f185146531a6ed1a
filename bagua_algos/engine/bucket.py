"""Flat storage: parameters and their gradients laid out in few padded `[w, n]` tensors.

A model's parameters become views of its buckets' weights, their gradients views of the buckets'
gradients, so one message, one kernel or one optimizer step serves many parameters, and nothing is
packed or unpacked.

Shape suffixes: w workers held by this process, n elements of a bucket with its padding.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bagua_algos.communication.primitives import CHUNK_ALIGNMENT


@dataclass(frozen=True, eq=False, kw_only=True)
class Bucket:
    """Parameters that travel together, in the order in which backward is expected to finish them.

    `weights` and `gradients` are `[w, n]`; the first `numel` columns are the parameters, one
    after the other; the rest is padding, so that n divides into one aligned chunk a worker.
    """

    index: int
    parameters: tuple[nn.Parameter, ...]
    numel: int
    weights: Tensor
    gradients: Tensor
    memory_formats: tuple[torch.memory_format, ...]

    def adopt_weights(self) -> None:
        """Copy the parameters in and make them views of `weights`."""
        with torch.no_grad():
            for parameter, view in zip(self.parameters, self.views(self.weights), strict=True):
                view.copy_(parameter)
                parameter.data = _with_own_storage(view)

    def end_moment(self, moment: str) -> None:
        """An algorithm has acted at `moment`, the name of a method of `Algorithm`, and may have
        changed `weights`. Nothing is to be done where parameters are views of them.
        """

    def gradient_views(self) -> list[Tensor]:
        """The places of the parameters' gradients in `gradients`, in the order of `parameters`."""
        return self.views(self.gradients)

    def views(self, flat_wn: Tensor) -> list[Tensor]:
        """Each parameter's part of a tensor that is laid out as `weights` is, in the parameter's
        shape and, where it was channels_last when the bucket was built, in that order.
        """
        num_workers, start, views = flat_wn.shape[0], 0, []
        for parameter, memory_format in zip(self.parameters, self.memory_formats, strict=True):
            numel = parameter.numel() // num_workers
            flat_wk = flat_wn[:, start : start + numel]
            if memory_format is torch.contiguous_format:
                views.append(flat_wk.view(parameter.shape))
            else:
                first, channels, *places = parameter.shape
                views.append(flat_wk.view(first, *places, channels).movedim(-1, 1))
            start += numel
        assert start == self.numel
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
    if bucket_bytes < 1:
        raise ValueError(f"bucket_bytes must be at least 1, got {bucket_bytes}")
    trainable = [p for p in parameters if p.requires_grad]
    if not trainable:
        raise ValueError("the model has no parameter that requires a gradient")
    groups: list[list[nn.Parameter]] = []
    filled = bucket_bytes
    for parameter in reversed(trainable):
        if filled >= bucket_bytes or not _same_storage(groups[-1][0], parameter):
            groups.append([])
            filled = 0
        groups[-1].append(parameter)
        filled += parameter.numel() // num_held * parameter.element_size()
    buckets = [
        _empty_bucket(index, tuple(group), num_held, world_size)
        for index, group in enumerate(groups)
    ]
    for bucket in buckets:
        bucket.adopt_weights()
    return buckets


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


def _with_own_storage(view: Tensor) -> Tensor:
    """The same memory behind a storage of its own: a file that holds one parameter then holds no
    other, and no two parameters seem to share memory.
    """
    return view if view.is_meta else torch.from_dlpack(view)


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
    index: int, parameters: tuple[nn.Parameter, ...], num_held: int, world_size: int
) -> Bucket:
    numel = sum(p.numel() for p in parameters) // num_held
    padded = padded_numel(numel, world_size)
    storage = torch.zeros(
        2, num_held, padded, dtype=parameters[0].dtype, device=parameters[0].device
    )
    return Bucket(
        index=index,
        parameters=parameters,
        numel=numel,
        weights=storage[0],
        gradients=storage[1],
        memory_formats=tuple(
            _memory_format(p) if num_held == 1 else torch.contiguous_format for p in parameters
        ),
    )
