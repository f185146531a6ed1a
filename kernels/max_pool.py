"""Max pooling of 2 x 2 on a CPU, by Numba: values and gradients have the bits of torch's.

torch's kernel looks at one number after the other and keeps where each largest stood in eight
bytes. These take a row at a time and keep it in one byte: 0 and 1 are the upper row's, 2 and 3 the
lower one's. Of equal numbers it is the first, of several NaN the last, as in torch.

Importing this module compiles the kernels, or loads them from Numba's cache.
"""

import numpy as np
import torch
from torch import Tensor

from kernels.jit import jit
from kernels.shared.pooling_cpu import largest
from kernels.threads import share

_ZERO = np.float32(0)
_FLOAT32 = (torch.float32,)


def pool(images: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each 2 x 2 numbers of float32 `[..., h, w]`, and where each one stood, uint8:
    both `[..., h // 2, w // 2]`. An odd row or column at the end is left out.
    """
    shape = (*images.shape[:-2], images.shape[-2] // 2, images.shape[-1] // 2)
    pooled, places = (
        torch.empty(shape, dtype=dtype, device="cpu") for dtype in (torch.float32, torch.uint8)
    )
    arguments = (_planes(images.detach().contiguous()), _planes(pooled), _planes(places))
    share(_pool, arguments, len(arguments[0]), images.numel())
    return pooled, places


def spread(gradients: Tensor, places: Tensor, shape: torch.Size) -> Tensor:
    """`gradients` of what `pool` has returned, each at its place in float32 of `shape`, among
    zeros.
    """
    spread = torch.empty(shape, dtype=torch.float32, device="cpu")
    arguments = (_planes(gradients.contiguous()), _planes(places), _planes(spread))
    share(_spread, arguments, len(arguments[2]), spread.numel())
    return spread


def _planes(x: Tensor) -> np.ndarray:
    return x.numpy().reshape(-1, *x.shape[-2:])


@jit("void(float32[:, :, ::1], float32[:, :, ::1], uint8[:, :, ::1], int64, int64)", of=_FLOAT32)
def _pool(images, pooled, places, first, last):
    for plane in range(first, last):
        for i in range(pooled.shape[1]):
            for j in range(pooled.shape[2]):
                a, b = images[plane, 2 * i, 2 * j], images[plane, 2 * i, 2 * j + 1]
                c, d = images[plane, 2 * i + 1, 2 * j], images[plane, 2 * i + 1, 2 * j + 1]
                pooled[plane, i, j], place = largest(a, b, c, d)
                places[plane, i, j] = np.uint8(place)


@jit("void(float32[:, :, ::1], uint8[:, :, ::1], float32[:, :, ::1], int64, int64)", of=_FLOAT32)
def _spread(gradients, places, spread, first, last):
    height, width = spread.shape[1], spread.shape[2]
    for plane in range(first, last):
        for i in range(gradients.shape[1]):
            for j in range(gradients.shape[2]):
                gradient, place = gradients[plane, i, j], places[plane, i, j]
                spread[plane, 2 * i, 2 * j] = gradient if place == 0 else _ZERO
                spread[plane, 2 * i, 2 * j + 1] = gradient if place == 1 else _ZERO
                spread[plane, 2 * i + 1, 2 * j] = gradient if place == 2 else _ZERO
                spread[plane, 2 * i + 1, 2 * j + 1] = gradient if place == 3 else _ZERO
        if height % 2:
            spread[plane, height - 1] = _ZERO
        if width % 2:
            spread[plane, :, width - 1] = _ZERO
