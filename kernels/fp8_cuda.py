"""Fp8 for CUDA tensors. Chunks hold at least one element; outputs are contiguous."""

from torch import Tensor

from kernels.cuda_module import TYPE_NAMES, CudaModule, Tiling, row_states

_MODULE = CudaModule("fp8.cu")


def compress(chunks: Tensor, payload: Tensor, wire: str) -> None:
    """Encode [chunks, n] of float32 or a 16-bit float into `payload`, uint8 [chunks,
    wire_bytes(n)].
    """
    chunks, tiling = chunks.contiguous(), Tiling(*chunks.shape)
    kind = f"{wire}_{TYPE_NAMES[chunks.dtype]}"
    if tiling.tiles_per_row == 1:  # which a block holds
        args = chunks, payload, tiling.rows, tiling.n
        _MODULE.launch(f"compress_rows_{kind}", args, tiling)
    else:
        states = row_states(tiling.rows, chunks.device)
        args = chunks, payload, states, tiling.rows, tiling.n
        _MODULE.launch_two_passes(f"compress_tiles_{kind}", args, tiling, chunks.device)


def decompress(payload: Tensor, chunks: Tensor, wire: str) -> None:
    """Decode uint8 [chunks, wire_bytes(n)] into `chunks`, float32 [chunks, n]."""
    decompress_mean(payload.unsqueeze(1), chunks, wire)


def decompress_mean(payloads: Tensor, chunks: Tensor, wire: str) -> None:
    """Decode uint8 [chunks, N, wire_bytes(n)], and write the mean of the N into `chunks`, float32
    [chunks, n].
    """
    tiling = Tiling(*chunks.shape)
    args = payloads.contiguous(), chunks, tiling.rows, tiling.n, payloads.shape[1]
    _MODULE.launch(f"decompress_mean_{wire}", args, tiling)
