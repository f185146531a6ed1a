"""Compressors and error feedback, apart from each other and from communication.

A compressor turns the last dimension of a tensor, a chunk, into bytes: `[..., n]` -> `[...,
wire_bytes(n)]`.
"""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from kernels import minmax_uint8


class Compressor(Protocol):
    """A (lossy) code for chunks of floats, each chunk on its own."""

    def wire_bytes(self, num_elements: int) -> int:
        """Bytes that a chunk of `num_elements` takes on the wire."""
        ...

    def compress(self, x: Tensor) -> Tensor:
        """`x[..., n]` -> uint8 `[..., wire_bytes(n)]`."""
        ...

    def decompress(self, payload: Tensor, num_elements: int) -> Tensor:
        """uint8 `[..., wire_bytes(n)]` -> float32 `[..., n]`, n = `num_elements`."""
        ...


@dataclass(frozen=True, kw_only=True)
class MinMaxUInt8:
    """Eight bits an element, evenly spaced between the chunk's least and greatest (BAGUA, arXiv
    2107.01499).

    A chunk with NaN or infinity decodes to NaN, so that divergence stays visible.
    """

    def __post_init__(self) -> None:
        minmax_uint8.load("cpu")  # compiled once, before workers are forked

    def wire_bytes(self, num_elements: int) -> int:
        """See `Compressor`: a header of 8 bytes and one byte an element, padded to a multiple of
        8.
        """
        return minmax_uint8.wire_bytes(num_elements)

    def compress(self, x: Tensor) -> Tensor:
        """See `Compressor`."""
        return minmax_uint8.compress(x)

    def decompress(self, payload: Tensor, num_elements: int) -> Tensor:
        """See `Compressor`."""
        return minmax_uint8.decompress(payload, num_elements)


@dataclass(frozen=True)
class ErrorFeedback:
    """Sends what earlier codes left out: Q(x + e), e <- x + e - Q(x + e) (Seide et al. 2014;
    arXiv 1901.09847).

    The residual e is the caller's: it is part of an algorithm's state.
    """

    compressor: Compressor

    def compress(self, x: Tensor, residual: Tensor) -> Tensor:
        """`x[..., n]` -> payload; `residual[..., n]` is added to it first and then holds what was
        lost.
        """
        residual.add_(x)
        payload = self.compressor.compress(residual)
        residual.sub_(self.compressor.decompress(payload, x.shape[-1]))
        return payload
