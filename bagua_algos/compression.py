"""Compressors and error feedback, apart from each other and from communication.

A compressor turns the last dimension of a tensor, a chunk, into bytes: `[..., n]` -> `[...,
wire_bytes(n)]`.
"""

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from kernels import minmax_uint8


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Which random numbers one compression draws: the same draw gives the same codes.

    A compressor that rounds at random keeps no state. What it draws for an element is a function
    of its own seed, of the numbers here, and of the element's place in its worker's row. So a
    real worker draws what its row of a simulated run draws, and a resumed run what the unbroken
    one would have drawn. No two compressions of one run may share a draw.

    `ranks` are the workers in the first dimension of what is compressed, `stage` tells apart
    several compressions of one bucket in one step.
    """

    ranks: tuple[int, ...]
    step: int
    bucket: int = 0
    stage: int = 0


class Compressor(Protocol):
    """A (lossy) code for chunks of floats, each chunk on its own."""

    unbiased: ClassVar[bool]
    """Whether a chunk is decoded to itself in the mean over draws."""

    def wire_bytes(self, num_elements: int) -> int:
        """Bytes that a chunk of `num_elements` takes on the wire."""
        ...

    def compress(self, x: Tensor, draw: Draw | None = None) -> Tensor:
        """`x[..., n]` -> uint8 `[..., wire_bytes(n)]`. One that rounds at random needs a `draw`
        and `x[w, ..., n]`.
        """
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

    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        minmax_uint8.load("cpu")  # compiled once, before workers are forked

    def wire_bytes(self, num_elements: int) -> int:
        """See `Compressor`: a header of 8 bytes and one byte an element, padded to a multiple of
        8.
        """
        return minmax_uint8.wire_bytes(num_elements)

    def compress(self, x: Tensor, draw: Draw | None = None) -> Tensor:
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

    def compress(self, x: Tensor, residual: Tensor, draw: Draw | None = None) -> Tensor:
        """`x[..., n]` -> payload; `residual[..., n]` is added to it first and then holds what was
        lost.
        """
        residual.add_(x)
        payload = self.compressor.compress(residual, draw)
        residual.sub_(self.compressor.decompress(payload, x.shape[-1]))
        return payload
