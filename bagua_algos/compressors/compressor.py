"""Compressors and error feedback, apart from each other and from communication.

A compressor turns the last dimension of a tensor, a chunk, into bytes: `[..., n]` -> `[...,
wire_bytes(n)]`.
"""

import warnings
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from kernels.shared.mean_reference import mean_in_order

REAL_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True)
class Draw:
    """The random numbers of one compression: the same draw gives the same codes.

    A compressor that rounds at random keeps no state. An element's random number is a function of
    the compressor's seed, of the fields here, and of the element's place in its worker's row. So a
    real worker draws what its row of a simulated run draws, and a resumed run what the unbroken one
    would have drawn. No two compressions of one run may share a draw.

    `ranks` are the workers in the first dimension of what is compressed, `stage` tells apart
    several compressions of one bucket in one step.
    """

    ranks: tuple[int, ...]
    step: int
    bucket: int = 0
    stage: int = 0


@runtime_checkable
class Compressor(Protocol):
    """A (lossy) code for chunks of floats, each chunk on its own.

    Subclasses inherit `load` and the last three methods; a code with kernels overrides them.
    """

    dtypes: ClassVar[tuple[torch.dtype, ...]] = REAL_DTYPES
    """Of the numbers that `compress` takes; an algorithm refuses parameters of another type. A code
    decodes to float32, and a float64 is encoded as the float32 next to it.
    """

    unbiased: ClassVar[bool]
    """Whether a chunk is decoded to itself in the mean over draws."""

    def load(self, device: torch.device | str) -> None:
        """Load or compile the kernels for `device`, so that the first use does not wait."""

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

    def decompress_into(self, payload: Tensor, out: Tensor) -> None:
        """uint8 `[..., wire_bytes(n)]` -> `out[..., n]`, of any floating-point type."""
        out.copy_(self.decompress(payload, out.shape[-1]))

    def decompress_mean(self, payloads: Tensor, num_elements: int) -> Tensor:
        """uint8 `[..., N, wire_bytes(n)]` -> float32 `[..., n]`: the mean of N decoded chunks,
        summed from the first to the last.
        """
        return mean_in_order(self.decompress(payloads, num_elements))

    def average(self, payloads: Tensor, num_elements: int, draw: Draw | None = None) -> Tensor:
        """uint8 `[..., N, wire_bytes(n)]` -> `[..., wire_bytes(n)]`: what `compress` makes of
        `decompress_mean`.
        """
        return self.compress(self.decompress_mean(payloads, num_elements), draw)


def encodable(x: Tensor) -> Tensor:
    """`x` as the kernels take it: float64, which they do not know, as float32."""
    return x.float() if x.dtype == torch.float64 else x


def is_plain(x: Tensor) -> bool:
    """Whether a kernel can write into `x` as it is: float32 without gaps."""
    return x.dtype == torch.float32 and x.is_contiguous()


@runtime_checkable
class FeedsBack(Protocol):
    """A compressor with one kernel for the whole of `ErrorFeedback.compress`."""

    def compress_with_feedback(self, x: Tensor, residual: Tensor) -> Tensor:
        """Encode x + residual; `residual[..., n]`, contiguous float32, keeps the loss."""
        ...


def forget_overflow_(left_out: Tensor) -> None:
    """Zeros for what is not finite in `left_out`, which waits for a later step: a gradient that
    overflowed is a step's, not for ever.
    """
    left_out.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


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
        if is_plain(residual) and isinstance(self.compressor, FeedsBack):
            return self.compressor.compress_with_feedback(x, residual)
        residual.add_(x)
        payload = self.compressor.compress(residual, draw)
        residual.sub_(self.compressor.decompress(payload, x.shape[-1]))
        forget_overflow_(residual)
        return payload


FEW_BITS = 4
"""A biased code of fewer bits an element than this is not to be used without error feedback."""


def warn_of_bias(compressor: Compressor, error_feedback: bool) -> None:
    """Warn of few biased bits without error feedback, and of error feedback around an unbiased
    code; called in an algorithm's `__post_init__`.
    """
    name, bits = type(compressor).__name__, bits_per_element(compressor)
    if not error_feedback and not compressor.unbiased and bits < FEW_BITS:
        warnings.warn(
            f"{name} is biased and keeps {bits:.2g} bits an element: without error feedback "
            "training may not converge (arXiv 1901.09847); set error_feedback=true",
            stacklevel=4,
        )
    if error_feedback and compressor.unbiased:
        warnings.warn(
            f"{name} is unbiased, and what it leaves out can be larger than what it was given:"
            " error feedback would let that grow (arXiv 1901.09847 asks for a contraction); "
            "set error_feedback=false",
            stacklevel=4,
        )


def bits_per_element(compressor: Compressor) -> float:
    """What an element of a long chunk takes on the wire."""
    return 8 * compressor.wire_bytes(1 << 20) / (1 << 20)


def relative_error(compressor: Compressor) -> float:
    """|D(Q(x)) - x| / |x| for an x of 4096 normally distributed elements."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 4096, generator=generator, dtype=torch.float32, device="cpu")
    payload = compressor.compress(x, Draw(ranks=(0,), step=0))
    return ((compressor.decompress(payload, x.shape[-1]) - x).norm() / x.norm()).item()
