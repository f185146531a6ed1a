"""SignScale for CUDA tensors. Chunks hold at least one element; outputs are contiguous.

The functions have the names and arguments of `kernels.sign_scale.reference`.
"""

import torch
from torch import Tensor

from kernels.cuda_module import TYPE_NAMES, CudaModule, Tiling, row_states, tiling_of

_MODULE = CudaModule("sign_scale/sign_scale.cu")
load = _MODULE.load


def compress(chunks: Tensor, payload: Tensor) -> None:
    """Encode [chunks, n], n >= 1, into `payload`, uint8 [chunks, wire_bytes(n)]."""
    chunks, tiling = chunks.contiguous(), tiling_of(*chunks.shape)
    sums, states = _new_sums(tiling, chunks.device), row_states(tiling.rows, chunks.device)
    args = chunks, payload, sums, states, tiling.rows, tiling.n, tiling.piece_size
    _MODULE.launch(f"compress_{TYPE_NAMES[chunks.dtype]}", args, tiling, blocks=tiling.pieces)


def compress_with_feedback(chunks: Tensor, residual: Tensor, payload: Tensor) -> None:
    """Encode residual + chunks; `residual`, float32 [chunks, n], keeps what the code lost."""
    tiling = tiling_of(*chunks.shape)
    _MODULE.launch_encoding(
        f"feedback_{TYPE_NAMES[chunks.dtype]}",
        (chunks.contiguous(), residual, payload),
        tiling,
        scratch=lambda: (_new_sums(tiling, chunks.device),),
    )


def decompress(payload: Tensor, chunks: Tensor) -> None:
    """Decode uint8 [chunks, wire_bytes(n)] into `chunks`, float32 [chunks, n]."""
    decompress_mean(payload.unsqueeze(1), chunks)


def decompress_mean(payloads: Tensor, chunks: Tensor) -> None:
    """Decode uint8 [chunks, N, wire_bytes(n)] to the mean of the N, in `chunks` [chunks, n]."""
    tiling = tiling_of(*chunks.shape)
    args = payloads.contiguous(), chunks, tiling.rows, tiling.n, payloads.shape[1]
    _MODULE.launch("decompress_mean", args, tiling)


def _new_sums(tiling: Tiling, device: torch.device) -> Tensor:
    """Room for a sum of each piece."""
    return torch.empty(tiling.pieces, dtype=torch.float64, device=device)
