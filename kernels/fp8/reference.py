"""Fp8 in plain torch: every element as an 8-bit float, over a scale that makes the chunk fit.

The 8-bit types reach too few magnitudes for a gradient as it is, so for one chunk c, in float32:

    scale = max |c| / (greatest number of the type), at least the smallest normal float32
    code = c / scale, rounded to the nearest of the type, half to even
    decoded = code * scale

A chunk with NaN or infinity has a scale of NaN, codes 0, and decodes to NaN everywhere. Paper:
Micikevicius et al., "FP8 formats for deep learning", arXiv 2209.05433.

Wire format of a chunk, little endian: scale as float32, the codes, and zeros up to a multiple of 4
bytes, so that every chunk's scale is aligned.
"""

import torch
from torch import Tensor

from kernels.shared.mean_reference import divide, mean_in_order

HEADER_BYTES = 4
ALIGNMENT_BYTES = 4
WIRE_DTYPES = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}


def wire_bytes(n: int) -> int:
    """Bytes that one chunk of `n` elements takes on the wire: scale, codes and padding."""
    return HEADER_BYTES + -(-n // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def compress(chunks: Tensor, payload: Tensor, wire: str) -> None:
    """Encode [chunks, n], n >= 1, of float32 or a 16-bit float into `payload`, uint8 [chunks,
    wire_bytes(n)].
    """
    x, dtype, end = chunks.float(), WIRE_DTYPES[wire], HEADER_BYTES + chunks.shape[1]
    scale = divide(x.abs().amax(1, keepdim=True), torch.finfo(dtype).max)
    scale.clamp_(min=torch.finfo(torch.float32).tiny)
    encodable = scale.isfinite()
    codes = torch.where(encodable, x / scale, 0.0).to(dtype)
    payload[:, :HEADER_BYTES] = scale.where(encodable, torch.nan).view(torch.uint8)
    payload[:, HEADER_BYTES:end] = codes.view(torch.uint8)
    payload[:, end:] = 0


def decompress(payload: Tensor, chunks: Tensor, wire: str) -> None:
    """Decode uint8 [chunks, wire_bytes(n)] into `chunks`, float32 [chunks, n]."""
    # Fresh copies, because the payload may start at an address that float32 does not allow.
    header, codes = (
        payload[:, part].clone(memory_format=torch.contiguous_format)
        for part in (slice(HEADER_BYTES), slice(HEADER_BYTES, HEADER_BYTES + chunks.shape[1]))
    )
    torch.mul(codes.view(WIRE_DTYPES[wire]).float(), header.view(torch.float32), out=chunks)


def decompress_mean(payloads: Tensor, chunks: Tensor, wire: str) -> None:
    """Decode uint8 [chunks, N, wire_bytes(n)], and write the mean of the N (`mean_in_order`) into
    `chunks`, float32 [chunks, n].
    """
    num_rows, num_codes = payloads.shape[:2]
    decoded = chunks.new_empty(num_rows * num_codes, chunks.shape[1])
    decompress(payloads.flatten(0, 1), decoded, wire)
    chunks.copy_(mean_in_order(decoded.unflatten(0, (num_rows, num_codes))))
