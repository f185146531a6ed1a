"""Philox4x32-10 in plain torch: random numbers that are a function of a counter and a key.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011. It has no state, so
every device, and every split of the work over threads or processes, draws the same numbers.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

Key = tuple[int, int]
"""Two words of 32 bits."""

ROUNDS = 10
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_MASK = 0xFFFFFFFF


def philox4x32(counter: Sequence[Tensor], key: Key) -> tuple[Tensor, ...]:
    """Four words of random bits for every counter, which is four words too.

    Words are int64 in [0, 2^32); the words of a counter broadcast against each other. The first
    word may be larger, for a stream of any length: the lowest 64 bits of its product count.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        # A product may wrap around to a negative number; its 64 bits are right nevertheless.
        a, b = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c2 = ((b >> 32) & _MASK) ^ c1 ^ k0, ((a >> 32) & _MASK) ^ c3 ^ k1
        c1, c3 = b & _MASK, a & _MASK
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def uniforms(n: int, streams: Tensor, key: Key) -> Tensor:
    """float32 [rows, n] in [0, 1), multiples of 2^-24, for int64 streams [rows, 3].

    Element i of a row is word i % 4 of counter (i // 4, *stream), its upper 24 bits.
    """
    blocks = torch.arange(-(-n // 4), device=streams.device)
    words = philox4x32((blocks, *streams.T.unsqueeze(-1)), key)
    return (torch.stack(words, -1) >> 8).flatten(-2)[..., :n].float() * 2.0**-24
