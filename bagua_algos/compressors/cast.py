"""A narrower floating-point type on the wire: bf16, fp16, or fp8 with a scale a chunk."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bagua_algos.compression import Draw

WIRE_DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
SCALE_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Cast:
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

    def wire_bytes(self, num_elements: int) -> int:
        """See `Compressor`: 2 bytes an element; or 1 and 4 bytes of scale, padded to a multiple
        of 4 bytes.
        """
        if not self._scaled:
            return 2 * num_elements
        return SCALE_BYTES + -(-num_elements // 4) * 4

    def compress(self, x: Tensor, draw: Draw | None = None) -> Tensor:
        """See `Compressor`."""
        if not self._scaled:
            codes = x.to(self._dtype)
            encodable = codes.isfinite().all(-1, keepdim=True)
            return codes.where(encodable, torch.nan).contiguous().view(torch.uint8)
        x = x.float()
        info = torch.finfo(torch.float32)
        scale = _amax(x).div(torch.finfo(self._dtype).max).clamp(min=info.tiny)
        encodable = scale.isfinite()
        codes = torch.where(encodable, x / scale, 0.0).to(self._dtype).view(torch.uint8)
        header = scale.where(encodable, torch.nan).view(torch.uint8)
        padding = header.new_zeros(*x.shape[:-1], -x.shape[-1] % 4)
        return torch.cat([header, codes, padding], -1)

    def decompress(self, payload: Tensor, num_elements: int) -> Tensor:
        """See `Compressor`."""
        # Copies, because a payload may start at an address that a wider type does not allow.
        if not self._scaled:
            return _copy(payload).view(self._dtype).float()
        header, codes = payload.tensor_split([SCALE_BYTES], -1)
        scale = _copy(header).view(torch.float32)
        return _copy(codes[..., :num_elements]).view(self._dtype).float() * scale

    @property
    def _dtype(self) -> torch.dtype:
        return WIRE_DTYPES[self.wire]

    @property
    def _scaled(self) -> bool:
        return self._dtype.itemsize == 1


def _amax(x: Tensor) -> Tensor:
    """max |x| over `x[..., n]`, `[..., 1]`; 0 where n = 0, NaN where there is one."""
    if x.shape[-1] == 0:
        return x.new_zeros(*x.shape[:-1], 1)
    return x.abs().amax(-1, keepdim=True)


def _copy(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)
