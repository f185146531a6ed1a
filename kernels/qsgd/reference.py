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

from kernels.shared.bit_packing_reference import pack, packed_bytes, unpack
from kernels.shared.mean_reference import divide, mean_in_order
from kernels.shared.philox_reference import Key, uniforms

NORM_BYTES = 4
ALIGNMENT_BYTES = 4


def wire_bytes(n: int, bits: int, group_size: int) -> int:
    """Bytes that one chunk of `n` elements takes on the wire: norms, codes and padding."""
    codes = -(-packed_bytes(n, bits) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return NORM_BYTES * -(-n // group_size) + codes


def compress(
    chunks: Tensor, payload: Tensor, streams: Tensor, key: Key, bits: int, group_size: int
) -> None:
    """Encode [chunks, n], n >= 1, of float32 or a 16-bit float into `payload`, uint8 [chunks,
    wire_bytes].

    The chunks belong to w workers, equally many to each, in the order of workers. Worker i draws
    `philox_reference.uniforms` of `streams[i]`, int64 [w, 3]: one number for every element of its
    chunks, in order.
    """
    (num_rows, n), s = chunks.shape, 2 ** (bits - 1) - 1
    x = chunks.float()
    draws = uniforms(num_rows * n // len(streams), streams, key).view(num_rows, n)
    norms = _groups(x.abs(), group_size).amax(-1)
    encodable = norms.isfinite().all(-1, keepdim=True)
    # A group of zeros is divided by 1, and what is not encoded takes no part.
    divisor = _spread(norms.where((norms > 0) & encodable, 1.0), group_size, n)
    y = x.where(encodable, 0.0).abs() / divisor * s
    level = y.floor() + (draws < y - y.floor())
    codes = pack((s + level.copysign(x)).to(torch.uint8), bits)
    start = NORM_BYTES * norms.shape[1]
    end = start + codes.shape[1]
    payload[:, :start] = norms.where(encodable, torch.nan).view(torch.uint8)
    payload[:, start:end] = codes
    payload[:, end:] = 0


def decompress(payload: Tensor, chunks: Tensor, bits: int, group_size: int) -> None:
    """Decode uint8 [chunks, wire_bytes] into `chunks`, float32 [chunks, n]."""
    n, s = chunks.shape[1], 2 ** (bits - 1) - 1
    header, codes = payload.tensor_split([NORM_BYTES * -(-n // group_size)], 1)
    # A fresh copy, because the payload may start at an address that float32 does not allow.
    norms = header.clone(memory_format=torch.contiguous_format).view(torch.float32)
    levels = divide(unpack(codes, n, bits).float() - s, s)
    torch.mul(_spread(norms, group_size, n), levels, out=chunks)


def decompress_mean(payloads: Tensor, chunks: Tensor, bits: int, group_size: int) -> None:
    """Decode uint8 [chunks, N, wire_bytes], and write the mean of the N (`mean_in_order`) into
    `chunks`, float32 [chunks, n].
    """
    num_rows, num_codes = payloads.shape[:2]
    decoded = chunks.new_empty(num_rows * num_codes, chunks.shape[1])
    decompress(payloads.flatten(0, 1), decoded, bits, group_size)
    chunks.copy_(mean_in_order(decoded.unflatten(0, (num_rows, num_codes))))


def _groups(x: Tensor, group_size: int) -> Tensor:
    """`x[..., n]` -> `[..., groups, group_size]`, the last group filled with zeros; one that is
    larger than n is of n.
    """
    group_size = min(group_size, x.shape[-1])
    padded = F.pad(x, (0, -x.shape[-1] % group_size))
    return padded.unflatten(-1, (padded.shape[-1] // group_size, group_size))


def _spread(norms: Tensor, group_size: int, n: int) -> Tensor:
    """`norms[..., groups]` -> `[..., n]`: the norm of each element's group."""
    return norms.repeat_interleave(min(group_size, n), -1)[..., :n]
