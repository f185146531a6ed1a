"""SignScale in plain torch: one bit an element and the chunk's mean magnitude.

For one chunk c of n elements:

    scale = sum |c| / n                 summed and divided in float64, then rounded to float32
    code = 1 where c >= 0, else 0       (-0 counts as 0)
    decoded = scale where code = 1, else -scale

Float64 keeps the order of summation from showing in the float32 result, but for rare ties. A chunk
with NaN or infinity has a scale of NaN, codes 0, and decodes to NaN everywhere.

Wire format of a chunk, little endian: scale as float32, the codes (`bit_packing_reference`), and
zeros up to a multiple of 4 bytes, so that every chunk's scale is aligned.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.bit_packing_reference import pack, packed_bytes, unpack

HEADER_BYTES = 4
ALIGNMENT_BYTES = 4


def wire_bytes(n: int) -> int:
    """Bytes that one chunk of `n` elements takes on the wire: header, codes and padding."""
    return HEADER_BYTES + -(-packed_bytes(n, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def compress(x: Tensor) -> Tensor:
    """Encode floats [..., n] to uint8 [..., wire_bytes(n)]."""
    n = x.shape[-1]
    scale = x.abs().sum(-1, keepdim=True, dtype=torch.float64).div(max(n, 1)).float()
    encodable = scale.isfinite()
    header = scale.where(encodable, torch.nan).view(torch.uint8)
    codes = pack(((x >= 0) & encodable).to(torch.uint8), 1)
    padding = wire_bytes(n) - HEADER_BYTES - codes.shape[-1]
    return torch.cat([header, F.pad(codes, (0, padding))], -1)


def decompress(payload: Tensor, n: int) -> Tensor:
    """Decode uint8 [..., wire_bytes(n)] to float32 [..., n]."""
    header, codes = payload.tensor_split([HEADER_BYTES], -1)
    scale = header.clone(memory_format=torch.contiguous_format).view(torch.float32)
    return torch.where(unpack(codes, n, 1).bool(), scale, -scale)
