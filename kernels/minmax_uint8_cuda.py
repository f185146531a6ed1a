"""MinMaxUInt8 for CUDA tensors. Chunks hold at least one element; outputs are contiguous."""

import torch
from torch import Tensor

from kernels.cuda_module import TYPE_NAMES, CudaModule, Tiling, row_states

_MODULE = CudaModule("minmax_uint8.cu")
load = _MODULE.load


def compress(chunks: Tensor, payload: Tensor) -> None:
    """Encode [chunks, n] of float32 or a 16-bit float into `payload`, uint8 [chunks,
    wire_bytes(n)].
    """
    _MODULE.launch_compress(TYPE_NAMES[chunks.dtype], chunks, payload)


def decompress(payload: Tensor, chunks: Tensor) -> None:
    """See the reference."""
    tiling, kind = Tiling(*chunks.shape), TYPE_NAMES[chunks.dtype]
    args = payload.contiguous(), chunks, tiling.rows, tiling.n
    _MODULE.launch(f"decompress_{kind}", args, tiling)


def decompress_mean(payloads: Tensor, chunks: Tensor) -> None:
    """Decode uint8 [chunks, N, wire_bytes(n)], and write the mean of the N into `chunks`, float32
    [chunks, n].
    """
    tiling = Tiling(*chunks.shape)
    args = payloads.contiguous(), chunks, tiling.rows, tiling.n, payloads.shape[1]
    _MODULE.launch("decompress_mean", args, tiling)


def average(payloads: Tensor, n: int, payload: Tensor) -> None:
    """Encode what `decompress_mean` decodes: the owner's step of the compressed all-reduce."""
    payloads, num_codes, device = payloads.contiguous(), payloads.shape[1], payloads.device
    tiling = Tiling(payloads.shape[0], n)
    if tiling.tiles_per_row == 1:  # which a block holds
        args = payloads, payload, tiling.rows, n, num_codes
        _MODULE.launch("average_rows", args, tiling)
    else:
        means, states = torch.empty(tiling.rows, n, device=device), row_states(tiling.rows, device)
        args = payloads, payload, means, states, tiling.rows, n, num_codes
        _MODULE.launch_two_passes("average_tiles", args, tiling, device)
