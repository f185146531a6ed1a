"""QSGD for CUDA tensors. Chunks hold at least one element; outputs are contiguous.

The functions have the names and arguments of `kernels.qsgd.reference`.
"""

import math

import torch
from torch import Tensor

from kernels.cuda_module import TYPE_NAMES, CudaModule, Tiling, row_states, tiling_of
from kernels.shared.philox_reference import Key

_MODULE = CudaModule("qsgd/qsgd.cu")
load = _MODULE.load
_VECTOR = 8  # elements: a tile ends with one of any type
_VECTOR_OF_FLOATS = 4
_WORD = 4  # bytes: payloads are of whole words


def compress(
    chunks: Tensor, payload: Tensor, streams: Tensor, key: Key, bits: int, group_size: int
) -> None:
    """Encode [chunks, n], n >= 1, into `payload`, uint8 [chunks, wire_bytes].

    Where tiles would cut groups, a pass for the norms comes first.
    """
    chunks, kind = chunks.contiguous(), TYPE_NAMES[chunks.dtype]
    (rows, n), device = chunks.shape, chunks.device
    group_size = min(group_size, n)
    states, norms, tiling = row_states(rows, device), 0, _whole_groups(rows, n, group_size)
    if tiling is None:
        tiling = tiling_of(rows, n)
        norms = torch.zeros(rows, -(-n // group_size), dtype=torch.int32, device=device)
        args = chunks, norms, states, rows, n, group_size, tiling.tile_size
        _MODULE.launch_striding(f"find_norms_{kind}", args, tiling)
    args = (
        *(chunks, payload, streams.to(device).contiguous(), states, norms),
        *(rows, n, group_size, tiling.tile_size, rows // len(streams), *key),
    )
    _MODULE.launch_striding(f"compress_{kind}_{bits}", args, tiling)


def decompress(payload: Tensor, chunks: Tensor, bits: int, group_size: int) -> None:
    """Decode uint8 [chunks, wire_bytes] into `chunks`, float32 [chunks, n]."""
    decompress_mean(payload.unsqueeze(1), chunks, bits, group_size)


def decompress_mean(payloads: Tensor, chunks: Tensor, bits: int, group_size: int) -> None:
    """Decode uint8 [chunks, N, wire_bytes] to the mean of the N, in `chunks` [chunks, n]."""
    tiling = tiling_of(*chunks.shape)
    group_size = min(group_size, tiling.n)
    args = payloads.contiguous(), chunks, tiling.rows, tiling.n, group_size, payloads.shape[1]
    no_vector_in_two = group_size == tiling.n or group_size % _VECTOR_OF_FLOATS == 0
    of_vectors = no_vector_in_two and args[0].data_ptr() % _WORD == 0
    groups = "of_vectors" if of_vectors else "of_elements"
    _MODULE.launch_striding(f"decompress_mean_{bits}_{groups}", args, tiling)


def _whole_groups(rows: int, n: int, group_size: int) -> Tiling | None:
    """Tiles that each begin with a group and a vector; None where a block does not hold one."""
    tiling = tiling_of(rows, n)
    if tiling.tiles_per_row == 1:
        return tiling
    step = math.lcm(group_size, _VECTOR)
    return tiling_of(rows, n, step) if step <= tiling.tile_size else None
