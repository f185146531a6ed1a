"""Codes of 1, 2, 4 or 8 bits in plain torch: the specification of how they share a byte.

    byte[i] = sum_k code[i * per + k] << (k * bits),    per = 8 / bits,  k = 0 .. per - 1

The first code stands in the lowest bits; a last byte that is not full ends in zeros.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def packed_bytes(n: int, bits: int) -> int:
    """Bytes that `n` codes of `bits` bits take."""
    return -(-n * bits // 8)


def pack(codes: Tensor, bits: int) -> Tensor:
    """uint8 codes [..., n], each below 2^bits, -> uint8 [..., packed_bytes(n, bits)]."""
    n, per = codes.shape[-1], 8 // bits
    places = F.pad(codes, (0, -n % per)).unflatten(-1, (-(-n // per), per))
    packed = places[..., 0].clone()
    for k in range(1, per):
        packed |= places[..., k] << (k * bits)
    return packed


def unpack(packed: Tensor, n: int, bits: int) -> Tensor:
    """uint8 [..., packed_bytes(n, bits)] -> uint8 codes [..., n]."""
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed.device)
    return ((packed.unsqueeze(-1) >> shifts) & (2**bits - 1)).flatten(-2)[..., :n]
