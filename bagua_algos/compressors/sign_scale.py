"""One bit an element: its sign, and the chunk's mean magnitude (EF-SignSGD's compressor)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bagua_algos.compressors.compressor import Compressor, Draw, encodable, is_plain
from kernels import sign_scale


@dataclass(frozen=True, kw_only=True)
class SignScale(Compressor):
    """D(c) = mean |c| * sign(c), where zero counts as positive (arXiv 1901.09847).

    Needs error feedback: alone it does not converge on some convex functions (section 3 there). A
    chunk with NaN or infinity decodes to NaN.
    """

    unbiased: ClassVar[bool] = False

    def load(self, device: torch.device | str) -> None:
        """Load or compile the kernels for `device`."""
        sign_scale.load(device)

    def wire_bytes(self, num_elements: int) -> int:
        """4 bytes of scale and a bit an element, padded to a multiple of 4
        bytes.
        """
        return sign_scale.wire_bytes(num_elements)

    def compress(self, x: Tensor, draw: Draw | None = None) -> Tensor:
        """`x[..., n]` -> uint8 `[..., wire_bytes(n)]`."""
        return sign_scale.compress(encodable(x))

    def compress_with_feedback(self, x: Tensor, residual: Tensor) -> Tensor:
        """Encode x + residual; `residual[..., n]`, contiguous float32, keeps the loss."""
        return sign_scale.compress_with_feedback(x, residual)

    def decompress(self, payload: Tensor, num_elements: int) -> Tensor:
        """uint8 `[..., wire_bytes(n)]` -> float32 `[..., n]`."""
        return sign_scale.decompress(payload, num_elements)

    def decompress_into(self, payload: Tensor, out: Tensor) -> None:
        """Decode the payload into `out[..., n]`."""
        if not is_plain(out):
            return super().decompress_into(payload, out)
        sign_scale.decompress(payload, out.shape[-1], out=out)

    def decompress_mean(self, payloads: Tensor, num_elements: int) -> Tensor:
        """uint8 `[..., N, wire_bytes(n)]` -> float32 `[..., n]`: the mean of N chunks."""
        return sign_scale.decompress_mean(payloads, num_elements)
