"""A narrower floating-point type on the wire: bf16, fp16, or fp8 with a scale a chunk."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bagua_algos.compressors.compressor import Compressor, Draw, encodable, is_plain
from kernels import fp8

WIRE_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, **fp8.WIRE_DTYPES}


@dataclass(frozen=True, kw_only=True)
class Cast(Compressor):
    """Every element rounded to the nearest of type `wire`: bf16, fp16, fp8_e4m3 or fp8_e5m2.

    The 8-bit types reach too few magnitudes for a gradient as it is: their chunk is divided by
    max |c| / (greatest number of the type) first, and the divisor travels as a float32 (arXiv
    2209.05433). A chunk with NaN or infinity, or with an element that overflows fp16
    or bf16, decodes to NaN. Raises `ValueError` for another type.
    """

    wire: str = "bf16"
    unbiased: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.wire not in WIRE_DTYPES:
            raise ValueError(f"wire must be one of {', '.join(WIRE_DTYPES)}, got {self.wire!r}")

    def load(self, device: torch.device | str) -> None:
        """Load or compile the kernels for `device`."""
        if self._scaled:
            fp8.load(device)

    def wire_bytes(self, num_elements: int) -> int:
        """2 bytes an element; or 1 and 4 bytes of scale, padded to a multiple
        of 4 bytes.
        """
        return fp8.wire_bytes(num_elements) if self._scaled else 2 * num_elements

    def compress(self, x: Tensor, draw: Draw | None = None) -> Tensor:
        """`x[..., n]` -> uint8 `[..., wire_bytes(n)]`."""
        if self._scaled:
            return fp8.compress(encodable(x), self.wire)
        codes = x.to(WIRE_DTYPES[self.wire])
        finite = codes.isfinite().all(-1, keepdim=True)
        return codes.where(finite, torch.nan).contiguous().view(torch.uint8)

    def decompress(self, payload: Tensor, num_elements: int) -> Tensor:
        """uint8 `[..., wire_bytes(n)]` -> float32 `[..., n]`."""
        if self._scaled:
            return fp8.decompress(payload, num_elements, self.wire)
        # A copy, because a payload may start at an address that a wider type does not allow.
        codes = payload.clone(memory_format=torch.contiguous_format).flatten()  # it may be of none
        x = codes.view(WIRE_DTYPES[self.wire]).float()
        return x.view(*payload.shape[:-1], num_elements)

    def decompress_into(self, payload: Tensor, out: Tensor) -> None:
        """Decode the payload into `out[..., n]`."""
        if not (self._scaled and is_plain(out)):
            return super().decompress_into(payload, out)
        fp8.decompress(payload, out.shape[-1], self.wire, out=out)

    def decompress_mean(self, payloads: Tensor, num_elements: int) -> Tensor:
        """uint8 `[..., N, wire_bytes(n)]` -> float32 `[..., n]`: the mean of N chunks."""
        if self._scaled:
            return fp8.decompress_mean(payloads, num_elements, self.wire)
        return super().decompress_mean(payloads, num_elements)

    @property
    def _scaled(self) -> bool:
        return self.wire in fp8.WIRE_DTYPES
