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
from torch import Tensor

from kernels.shared.bit_packing_reference import pack, packed_bytes, unpack
from kernels.shared.mean_reference import divide, mean_in_order

HEADER_BYTES = 4
ALIGNMENT_BYTES = 4


def wire_bytes(n: int) -> int:
    """Bytes that one chunk of `n` elements takes on the wire: header, codes and padding."""
    return HEADER_BYTES + -(-packed_bytes(n, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def compress(chunks: Tensor, payload: Tensor) -> None:
    """Encode [chunks, n], n >= 1, of float32 or a 16-bit float into `payload`, uint8 [chunks,
    wire_bytes(n)].
    """
    n = chunks.shape[1]
    total = chunks.abs().sum(1, keepdim=True, dtype=torch.float64)
    scale = divide(total, n).float()
    encodable = scale.isfinite()
    codes = pack(((chunks >= 0) & encodable).to(torch.uint8), 1)
    end = HEADER_BYTES + codes.shape[1]
    payload[:, :HEADER_BYTES] = scale.where(encodable, torch.nan).view(torch.uint8)
    payload[:, HEADER_BYTES:end] = codes
    payload[:, end:] = 0


def compress_with_feedback(chunks: Tensor, residual: Tensor, payload: Tensor) -> None:
    """Encode residual + chunks; `residual`, float32 [chunks, n], then holds what the code left out.

    What is not finite becomes 0 there.
    """
    residual += chunks
    compress(residual, payload)
    decoded = torch.empty_like(residual)
    decompress(payload, decoded)
    residual -= decoded
    residual.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def decompress(payload: Tensor, chunks: Tensor) -> None:
    """Decode uint8 [chunks, wire_bytes(n)] into `chunks`, float32 [chunks, n]."""
    # A fresh copy, because the payload may start at an address that float32 does not allow.
    header = payload[:, :HEADER_BYTES].clone(memory_format=torch.contiguous_format)
    scale = header.view(torch.float32)
    codes = unpack(payload[:, HEADER_BYTES:], chunks.shape[1], 1)
    chunks.copy_(torch.where(codes.bool(), scale, -scale))


def decompress_mean(payloads: Tensor, chunks: Tensor) -> None:
    """Decode uint8 [chunks, N, wire_bytes(n)], and write the mean of the N (`mean_in_order`) into
    `chunks`, float32 [chunks, n].
    """
    num_rows, num_codes = payloads.shape[:2]
    decoded = chunks.new_empty(num_rows * num_codes, chunks.shape[1])
    decompress(payloads.flatten(0, 1), decoded)
    chunks.copy_(mean_in_order(decoded.unflatten(0, (num_rows, num_codes))))
