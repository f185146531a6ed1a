"""A bucket of shards: what one process holds of one unit, as a flat `[1, n]`.

FSDP2 owns the storage of weights, so they are copied for a moment that asks for them. The storage
of gradients is the bucket's: FSDP2's own is freed once the bucket has taken it over.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bagua_algos.engine.bucket import Bucket, packed, padded_numel
from bagua_algos.fsdp2.shards import LocalShard, Unit, distributed, local


class ShardBucket(Bucket):
    """The local `shards` of some parameters, at least one, of one dtype and device, none empty.

    `weights` are a copy of the shards, made when an algorithm asks for them in one of its moments,
    and not to be kept for the next. At the end of the moment the shards get its values, but for
    `on_forward`: what travels while others compute may only be read.
    """

    def __init__(self, index: int, shards: Sequence[LocalShard], world_size: int) -> None:
        numel = sum(shard.numel() for shard in shards)
        gradients = shards[0].new_zeros(1, padded_numel(numel, world_size), requires_grad=False)
        _set(self, index=index, parameters=tuple(shards), numel=numel, gradients=gradients)
        _set(self, starts=packed(shards, num_held=1))
        _set(self, memory_formats=(torch.contiguous_format,) * len(shards))
        self.shards = tuple(shards)
        self._copy: Tensor | None = None

    @property
    def weights(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """A copy of the shards, `[1, n]`, the same until it is written back."""
        if self._copy is None:
            self._copy = torch.zeros_like(self.gradients)
            for view, shard in zip(self.views(self._copy), self.shards, strict=True):
                view.copy_(local(shard.whole))
        return self._copy

    def end_moment(self, moment: str) -> None:
        """Write back what the algorithm has made of `weights`, if it may change them."""
        if moment == "on_forward":
            self._copy = None
        self.write_back()

    def write_back(self) -> None:
        """Give the shards the values of `weights`, if anybody has asked for these."""
        if self._copy is None:
            return
        for view, shard in zip(self.views(self._copy), self.shards, strict=True):
            local(shard.whole).copy_(view)
        self._copy = None


class WholeBucket(Bucket):
    """The same bucket as backward and the optimizer see it: `parameters` are the distributed ones,
    and their gradients distributed tensors in the storage of `shards.gradients`.
    """

    def __init__(self, shards: ShardBucket) -> None:
        wholes = tuple(shard.whole for shard in shards.shards)
        _set(self, index=shards.index, parameters=wholes, numel=shards.numel)
        _set(self, starts=shards.starts, memory_formats=shards.memory_formats)
        _set(self, gradients=shards.gradients)
        self.shards = shards

    @property
    def weights(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """A copy of the shards, `[1, n]`."""
        return self.shards.weights

    def gradient_views(self) -> list[Tensor]:
        """The places of the parameters' gradients, as distributed tensors."""
        views = self.shards.gradient_views()
        return [distributed(v, whole) for v, whole in zip(views, self.parameters, strict=True)]

    def copy_gradients_(self, views: list[Tensor], gradients: list[Tensor]) -> None:
        """One by one, as distributed tensors have to be."""
        for view, gradient in zip(views, gradients, strict=True):
            view.copy_(gradient)


def build_buckets(units: Sequence[Unit], world_size: int) -> list[ShardBucket]:
    """The shards of each unit, for `world_size` replicas; none of a unit, or of a parameter, of
    which this process holds nothing.
    """
    held = [[LocalShard.of(p) for p in unit.parameters.values()] for unit in units]
    full = [[shard for shard in shards if shard.numel()] for shards in held]
    return [
        ShardBucket(index, shards, world_size) for index, shards in enumerate(filter(None, full))
    ]


def _set(bucket: Bucket, **fields: object) -> None:
    """Fill fields of a bucket, whose class is frozen."""
    for name, value in fields.items():
        object.__setattr__(bucket, name, value)
