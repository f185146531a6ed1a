"""Fp8 for CUDA tensors. Chunks hold at least one element; outputs are contiguous.

The functions have the names and arguments of `kernels.fp8.reference`.
"""

from torch import Tensor

from kernels.cuda_module import TYPE_NAMES, CudaModule, tiling_of

_MODULE = CudaModule("fp8/fp8.cu")
load = _MODULE.load


def compress(chunks: Tensor, payload: Tensor, wire: str) -> None:
    """Encode [chunks, n], n >= 1, as `wire` into `payload`, uint8 [chunks, wire_bytes(n)]."""
    kernel = f"compress_{wire}_{TYPE_NAMES[chunks.dtype]}"
    _MODULE.launch_encoding(kernel, (chunks.contiguous(), payload), tiling_of(*chunks.shape))


def decompress(payload: Tensor, chunks: Tensor, wire: str) -> None:
    """Decode uint8 [chunks, wire_bytes(n)] into `chunks`, float32 [chunks, n]."""
    decompress_mean(payload.unsqueeze(1), chunks, wire)


def decompress_mean(payloads: Tensor, chunks: Tensor, wire: str) -> None:
    """Decode uint8 [chunks, N, wire_bytes(n)] to the mean of the N, in `chunks` [chunks, n]."""
    tiling = tiling_of(*chunks.shape)
    args = payloads.contiguous(), chunks, tiling.rows, tiling.n, payloads.shape[1]
    _MODULE.launch(f"decompress_mean_{wire}", args, tiling)
