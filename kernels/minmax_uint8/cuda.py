"""MinMaxUInt8 for CUDA tensors. Chunks hold at least one element; outputs are contiguous.

The functions have the names and arguments of `kernels.minmax_uint8.reference`.
"""

import torch
from torch import Tensor

from kernels.cuda_module import TYPE_NAMES, CudaModule, tiling_of

_MODULE = CudaModule("minmax_uint8/minmax_uint8.cu")
load = _MODULE.load


def compress(chunks: Tensor, payload: Tensor) -> None:
    """Encode [chunks, n], n >= 1, into `payload`, uint8 [chunks, wire_bytes(n)]."""
    kernel = f"compress_{TYPE_NAMES[chunks.dtype]}"
    _MODULE.launch_encoding(kernel, (chunks.contiguous(), payload), tiling_of(*chunks.shape))


def decompress(payload: Tensor, chunks: Tensor) -> None:
    """Decode uint8 [chunks, wire_bytes(n)] into `chunks`, float32 or 16-bit [chunks, n]."""
    tiling, kind = tiling_of(*chunks.shape), TYPE_NAMES[chunks.dtype]
    args = payload.contiguous(), chunks, tiling.rows, tiling.n
    _MODULE.launch(f"decompress_{kind}", args, tiling)


def decompress_mean(payloads: Tensor, chunks: Tensor) -> None:
    """Decode uint8 [chunks, N, wire_bytes(n)] to the mean of the N, in `chunks` [chunks, n]."""
    tiling = tiling_of(*chunks.shape)
    args = payloads.contiguous(), chunks, tiling.rows, tiling.n, payloads.shape[1]
    _MODULE.launch("decompress_mean", args, tiling)


def average(payloads: Tensor, n: int, payload: Tensor) -> None:
    """Encode the mean of the N codes of each chunk, [chunks, N, B] -> [chunks, B]; the means are
    kept in float32 between the passes.
    """
    num_rows, num_codes, _ = payloads.shape
    _MODULE.launch_encoding(
        "average",
        (payloads.contiguous(), payload),
        tiling_of(num_rows, n),
        num_codes,
        scratch=lambda: (torch.empty(num_rows, n, dtype=torch.float32, device=payloads.device),),
    )
