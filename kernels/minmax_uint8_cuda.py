"""MinMaxUInt8 for CUDA tensors. Chunks hold at least one element; outputs are contiguous."""

import torch
from torch import Tensor

from kernels.cuda_module import TYPE_NAMES, CudaModule, Tiling

_MODULE = CudaModule("minmax_uint8.cu")
load = _MODULE.load


def compress(chunks: Tensor, payload: Tensor) -> None:
    """Encode [chunks, n] of float32 or a 16-bit float into `payload`, uint8 [chunks,
    wire_bytes(n)].
    """
    kernel = f"compress_{TYPE_NAMES[chunks.dtype]}"
    _MODULE.launch_encoding(kernel, (chunks.contiguous(), payload), Tiling(*chunks.shape))


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
    num_rows, num_codes, _ = payloads.shape
    _MODULE.launch_encoding(
        "average",
        (payloads.contiguous(), payload),
        Tiling(num_rows, n),
        num_codes,
        scratch=lambda: (torch.empty(num_rows, n, device=payloads.device),),  # the means
    )
