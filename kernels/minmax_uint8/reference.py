"""MinMaxUInt8 in plain torch: the specification that every other form must equal bit for bit.

For one chunk c, in float32, `rint` rounding half to even (the compressor of ByteGrad in Bagua):

    mn = min(c), mx = max(c), scale = 255 / (mx - mn + 1e-7)
    upper = rint(mx * scale), lower = upper - 255
    code = clamp(min(rint(c * scale), upper) - lower, 0, 255)
    decoded = (code + lower) / scale

Both clamps are needed. For mn = -mx the smallest element has level -1, which a plain cast wraps to
255; where |upper| > 2^24, `lower` is rounded and the largest element can have level 256. (The
`min` changes nothing, since rounding is monotone; it is kept to follow Bagua.)

A chunk whose codes 0 and 255 do not both decode to finite numbers is not encoded: its header
becomes NaN, its codes 0, and it decodes to NaN everywhere. That covers NaN, infinity and every
overflow in the formula above, so divergence stays visible without a host synchronisation.

No product is added to anything, so contraction into fused multiply-adds cannot change a bit.
Division must be the correctly rounded one, and denormals must not be flushed.

Wire format of a chunk of n elements, little endian: mn and mx as float32 (-0 is written as +0), n
codes, and zeros up to a multiple of 8 bytes. Equal chunks give equal bytes.
"""

import torch
from torch import Tensor

from kernels.shared.mean_reference import mean_in_order

HEADER_BYTES = 8
ALIGNMENT_BYTES = 8


def wire_bytes(n: int) -> int:
    """Bytes that one chunk of `n` elements takes on the wire: header, codes and padding."""
    return HEADER_BYTES + -(-n // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def compress(chunks: Tensor, payload: Tensor) -> None:
    """Encode [chunks, n], n >= 1, of float32 or a 16-bit float into `payload`, uint8 [chunks,
    wire_bytes(n)].
    """
    chunks, end = chunks.float(), HEADER_BYTES + chunks.shape[1]
    mn = chunks.amin(dim=1, keepdim=True) + 0.0  # turns -0 into +0
    mx = chunks.amax(dim=1, keepdim=True) + 0.0
    scale, upper, lower = _grid(mn, mx)
    encodable = torch.isfinite(lower / scale) & torch.isfinite((255 + lower) / scale)
    codes = (torch.minimum(torch.round(chunks * scale), upper) - lower).clamp(0, 255)
    header = torch.where(encodable, torch.cat([mn, mx], dim=1), torch.nan)

    payload[:, :HEADER_BYTES] = header.view(torch.uint8)
    payload[:, HEADER_BYTES:end] = torch.where(encodable, codes, 0)
    payload[:, end:] = 0


def decompress(payload: Tensor, chunks: Tensor) -> None:
    """Decode uint8 [chunks, wire_bytes(n)] into `chunks` [chunks, n] of float32, or of a 16-bit
    float, to which numbers are rounded that are clamped to (mn, mx) first: the largest may lie half
    a step above mx, and would round to infinity there.
    """
    mn, mx = _read_header(payload)
    scale, _, lower = _grid(mn, mx)
    codes = payload[:, HEADER_BYTES : HEADER_BYTES + chunks.shape[1]].float()
    x = chunks if chunks.dtype == torch.float32 else torch.empty_like(codes)
    torch.div(codes + lower, scale, out=x)
    if x is not chunks:
        chunks.copy_(x.clamp_(mn, mx))


def decompress_mean(payloads: Tensor, chunks: Tensor) -> None:
    """Decode uint8 [chunks, N, wire_bytes(n)], and write the mean of the N (`mean_in_order`) into
    `chunks`, float32 [chunks, n].
    """
    num_rows, num_codes = payloads.shape[:2]
    decoded = chunks.new_empty(num_rows * num_codes, chunks.shape[1])
    decompress(payloads.flatten(0, 1), decoded)
    chunks.copy_(mean_in_order(decoded.unflatten(0, (num_rows, num_codes))))


def average(payloads: Tensor, n: int, payload: Tensor) -> None:
    """Encode what `decompress_mean` decodes: the owner's step of the compressed all-reduce."""
    chunks = torch.empty(payloads.shape[0], n, dtype=torch.float32, device=payloads.device)
    decompress_mean(payloads, chunks)
    compress(chunks, payload)


def _read_header(payload: Tensor) -> tuple[Tensor, Tensor]:
    """(mn, mx), each float32 [chunks, 1], of a payload uint8 [chunks, wire_bytes(n)]."""
    # A fresh copy, because the payload may start at an address that float32 does not allow.
    header = payload[:, :HEADER_BYTES].clone(memory_format=torch.contiguous_format)
    mn, mx = header.view(torch.float32).split(1, dim=1)
    return mn, mx


def _grid(mn: Tensor, mx: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    spread = mx - mn + 1e-7
    # Not `255 / spread`: torch computes that as spread.reciprocal() * 255, which rounds twice.
    scale = torch.full_like(spread, 255) / spread
    upper = torch.round(mx * scale)
    return scale, upper, upper - 255
