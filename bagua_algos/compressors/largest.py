"""The few elements of greatest magnitude, with their places; the rest is left out."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import torch
from torch import Tensor

from bagua_algos.compressors.compressor import Compressor, Draw


@dataclass(frozen=True, eq=False, kw_only=True)
class Sparse:
    """k elements of each chunk: float32 `values[..., k]` and int64 `indices[..., k]` into it.

    On the wire 8 k bytes, little endian: the values as float32, then the indices as int32.
    """

    values: Tensor
    indices: Tensor

    @staticmethod
    def wire_bytes(num_kept: int) -> int:
        """Bytes on the wire of `num_kept` elements."""
        return 8 * num_kept

    def pack(self) -> Tensor:
        """uint8 `[..., wire_bytes(k)]`."""
        words = torch.cat([self.values.float().view(torch.int32), self.indices.int()], -1)
        return words.view(torch.uint8)

    @classmethod
    def unpack(cls, payload: Tensor) -> "Sparse":
        """What `pack` made `payload` of."""
        own = payload.clone(memory_format=torch.contiguous_format).flatten()  # it may be of none
        words = own.view(torch.int32).view(*payload.shape[:-1], payload.shape[-1] // 4)
        values, indices = words.chunk(2, -1)
        return cls(values=values.view(torch.float32), indices=indices.long())


@dataclass(frozen=True, kw_only=True)
class Largest(Compressor):
    """Keeps the `ratio` of a chunk's elements that are greatest in magnitude, at least one (top-k;
    arXiv 1809.07599).

    Needs error feedback. A chunk with NaN or infinity decodes to NaN. Raises `ValueError` for a
    ratio outside (0, 1].
    """

    ratio: float = 0.01
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise ValueError(f"ratio must be in (0, 1], got {self.ratio}")

    def num_kept(self, num_elements: int) -> int:
        """k for a chunk of `num_elements`: `ratio` of them as it is written, rounded up."""
        return math.ceil(Fraction(str(float(self.ratio))) * num_elements)

    def select(self, x: Tensor) -> Sparse:
        """The elements of `x[..., n]` to send; NaN counts as greatest."""
        indices = x.abs().topk(self.num_kept(x.shape[-1]), sorted=False).indices
        return Sparse(values=x.gather(-1, indices), indices=indices)

    def wire_bytes(self, num_elements: int) -> int:
        """8 bytes a kept element."""
        return Sparse.wire_bytes(self.num_kept(num_elements))

    def compress(self, x: Tensor, draw: Draw | None = None) -> Tensor:
        """`x[..., n]` -> uint8 `[..., wire_bytes(n)]`."""
        return self.select(x).pack()

    def decompress(self, payload: Tensor, num_elements: int) -> Tensor:
        """uint8 `[..., wire_bytes(n)]` -> float32 `[..., n]`."""
        sparse = Sparse.unpack(payload)
        zeros = payload.new_zeros(*payload.shape[:-1], num_elements, dtype=torch.float32)
        dense = zeros.scatter_(-1, sparse.indices, sparse.values)
        return dense.where(sparse.values.isfinite().all(-1, keepdim=True), torch.nan)
