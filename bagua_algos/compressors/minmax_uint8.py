"""Eight bits an element, evenly spaced between the least and the greatest of a chunk."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bagua_algos.compressors.compressor import Compressor, Draw, encodable
from kernels import minmax_uint8
from kernels.dispatch import DTYPES


@dataclass(frozen=True, kw_only=True)
class MinMaxUInt8(Compressor):
    """Eight bits an element, evenly spaced between the chunk's least and greatest (BAGUA, arXiv
    2107.01499).

    A chunk with NaN or infinity decodes to NaN, so that divergence stays visible. Levels are at
    least 1e-7 / 255 apart, so one whose greatest and least differ by less than about 2e-10 is sent
    as a constant: scale the loss where gradients are as small (docs/algorithms.md).
    """

    unbiased: ClassVar[bool] = False

    def load(self, device: torch.device | str) -> None:
        """Load or compile the kernels for `device`."""
        minmax_uint8.load(device)

    def wire_bytes(self, num_elements: int) -> int:
        """A header of 8 bytes and one byte an element, padded to a multiple of
        8.
        """
        return minmax_uint8.wire_bytes(num_elements)

    def compress(self, x: Tensor, draw: Draw | None = None) -> Tensor:
        """`x[..., n]` -> uint8 `[..., wire_bytes(n)]`."""
        return minmax_uint8.compress(encodable(x))

    def decompress(self, payload: Tensor, num_elements: int) -> Tensor:
        """uint8 `[..., wire_bytes(n)]` -> float32 `[..., n]`."""
        return minmax_uint8.decompress(payload, num_elements)

    def decompress_into(self, payload: Tensor, out: Tensor) -> None:
        """Decode the payload into `out[..., n]`."""
        n, dtype = out.shape[-1], out.dtype if out.dtype in DTYPES else torch.float32
        if out.dtype == dtype and out.is_contiguous():
            minmax_uint8.decompress(payload, n, dtype, out=out)
        else:
            out.copy_(minmax_uint8.decompress(payload, n, dtype))

    def decompress_mean(self, payloads: Tensor, num_elements: int) -> Tensor:
        """uint8 `[..., N, wire_bytes(n)]` -> float32 `[..., n]`: the mean of N chunks."""
        return minmax_uint8.decompress_mean(payloads, num_elements)

    def average(self, payloads: Tensor, num_elements: int, draw: Draw | None = None) -> Tensor:
        """uint8 `[..., N, wire_bytes(n)]` -> the code of the mean, `[..., wire_bytes(n)]`."""
        return minmax_uint8.average(payloads, num_elements)
