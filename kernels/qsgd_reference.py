"""QSGD in plain torch: `bits` bits an element, rounded at random so that the mean is right.

For one group g of up to `group_size` elements of a chunk, in float32, with s = 2^(bits - 1) - 1
levels on either side of zero and one uniform draw u in [0, 1) an element:

    norm = max |g|,  y = |g| / norm * s
    level = floor(y) + (u < y - floor(y))           E[level] = y
    code = s + sign(g) * level                      0 .. 2s
    decoded = norm * ((code - s) / s)

The norm is the maximum: the 2-norm of the paper's analysis leaves large groups almost without
non-zero codes. A group of zeros comes back as zeros. A chunk with NaN or infinity has norms of NaN,
and decodes to NaN everywhere.

Wire format of a chunk of n elements, little endian: the groups' norms as float32, the codes
(`bit_packing_reference`), and zeros up to a multiple of 4 bytes.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from kernels.bit_packing_reference import pack, packed_bytes, unpack

NORM_BYTES = 4
ALIGNMENT_BYTES = 4


def wire_bytes(n: int, bits: int, group_size: int) -> int:
    """Bytes that one chunk of `n` elements takes on the wire: norms, codes and padding."""
    codes = -(-packed_bytes(n, bits) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return NORM_BYTES * -(-n // group_size) + codes


def compress(x: Tensor, uniforms: Tensor, bits: int, group_size: int) -> Tensor:
    """Encode floats [..., n] with draws [..., n] to uint8 [..., wire_bytes(n)]."""
    n, s = x.shape[-1], 2 ** (bits - 1) - 1
    norms = _groups(x.float().abs(), group_size).amax(-1)
    encodable = norms.isfinite().all(-1, keepdim=True)
    # A group of zeros is divided by 1, and what is not encoded takes no part.
    divisor = _spread(norms.where((norms > 0) & encodable, 1.0), group_size, n)
    y = x.float().where(encodable, 0.0).abs() / divisor * s
    level = y.floor() + (uniforms < y - y.floor())
    codes = pack((s + level.copysign(x)).to(torch.uint8), bits)
    header = norms.where(encodable, torch.nan).view(torch.uint8)
    padding = wire_bytes(n, bits, group_size) - header.shape[-1] - codes.shape[-1]
    return torch.cat([header, F.pad(codes, (0, padding))], -1)


def decompress(payload: Tensor, n: int, bits: int, group_size: int) -> Tensor:
    """Decode uint8 [..., wire_bytes(n)] to float32 [..., n]."""
    s = 2 ** (bits - 1) - 1
    header, codes = payload.tensor_split([NORM_BYTES * -(-n // group_size)], -1)
    norms = header.clone(memory_format=torch.contiguous_format).view(torch.float32)
    return _spread(norms, group_size, n) * ((unpack(codes, n, bits).float() - s) / s)


def _groups(x: Tensor, group_size: int) -> Tensor:
    """`x[..., n]` -> `[..., groups, group_size]`, the last group filled with zeros."""
    padded = F.pad(x, (0, -x.shape[-1] % group_size))
    return padded.unflatten(-1, (padded.shape[-1] // group_size, group_size))


def _spread(norms: Tensor, group_size: int, n: int) -> Tensor:
    """`norms[..., groups]` -> `[..., n]`: the norm of each element's group."""
    return norms.repeat_interleave(group_size, -1)[..., :n]
