"""One bit an element: its sign, and the chunk's mean magnitude (EF-SignSGD's compressor)."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bagua_algos.compression import Draw
from kernels import sign_scale_reference


@dataclass(frozen=True, kw_only=True)
class SignScale:
    """D(c) = mean |c| * sign(c), where zero counts as positive (arXiv 1901.09847).

    Needs error feedback: alone it does not converge on some convex functions (section 3 there). A
    chunk with NaN or infinity decodes to NaN.
    """

    unbiased: ClassVar[bool] = False

    def wire_bytes(self, num_elements: int) -> int:
        """See `Compressor`: 4 bytes of scale and a bit an element, padded to a multiple of 4
        bytes.
        """
        return sign_scale_reference.wire_bytes(num_elements)

    def compress(self, x: Tensor, draw: Draw | None = None) -> Tensor:
        """See `Compressor`."""
        return sign_scale_reference.compress(x)

    def decompress(self, payload: Tensor, num_elements: int) -> Tensor:
        """See `Compressor`."""
        return sign_scale_reference.decompress(payload, num_elements)
