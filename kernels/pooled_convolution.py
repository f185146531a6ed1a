"""Convolutions of 3 x 3 that are pooled by 2 x 2 at once, on a CPU, by Numba.

A first convolution has few inputs and many outputs: most of its time, and of the pooling's behind
it, goes into writing the outputs and reading them again. Here the largest of each four is written,
and where it stood; backward, three in four gradients are zero, and nobody looks at these.

Shapes: g groups of b images, each with weights of its own, c channels of an image and o of what it
becomes. Importing this module compiles the kernels, or loads them from Numba's cache.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kernels.jit import jit
from kernels.shared.pooling_cpu import largest
from kernels.threads import share

_FLOAT32 = (torch.float32,)


def bordered(images: Tensor) -> Tensor:
    """float32 `[..., h, w]` in a border of zeros `[..., h + 2, w + 2]`, which the kernels read."""
    return functional.pad(images.detach(), (1, 1, 1, 1)).contiguous()


def pool_convolved(framed: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each 2 x 2 numbers that `framed[g, b, c, h + 2, w + 2]`, of `bordered`, become
    by float32 `weights[g, o, c, 3, 3]`, and where each one stood, uint8, as in `kernels.max_pool`:
    both `[b, g, o, h // 2, w // 2]`.
    """
    groups, images, _, height, width = framed.shape
    shape = (images, groups, weights.shape[1], height // 2 - 1, width // 2 - 1)
    pooled, places = (
        torch.empty(shape, dtype=dtype, device="cpu") for dtype in (torch.float32, torch.uint8)
    )
    own = weights.detach().contiguous()
    arguments = tuple(x.numpy() for x in (framed, own, pooled, places))
    share(_pool_convolved, arguments, groups * images, 4 * pooled.numel())
    return pooled, places


def gradients_of_weights(gradients: Tensor, places: Tensor, framed: Tensor) -> Tensor:
    """`[g, o, c, 3, 3]`, by the `gradients` of what `pool_convolved` has returned."""
    _, groups, channels, *_ = gradients.shape
    shape = (groups, channels, framed.shape[2], 3, 3)
    of_weights = torch.empty(shape, dtype=torch.float32, device="cpu")
    arguments = tuple(x.numpy() for x in (gradients.contiguous(), places, framed, of_weights))
    share(_weigh, arguments, groups * channels, 4 * gradients.numel())
    return of_weights


@jit(
    "void(float32[:, :, :, :, ::1], float32[:, :, :, :, ::1], float32[:, :, :, :, ::1],"
    " uint8[:, :, :, :, ::1], int64, int64)",
    of=_FLOAT32,
    fastmath={"contract"},
)
def _pool_convolved(framed, weights, pooled, places, first, last):
    images, channels, pitch = framed.shape[1], framed.shape[2], framed.shape[4]
    half_height, half_width = pooled.shape[3], pooled.shape[4]
    # Rows lie behind each other, borders and all: long loops, of which borders are a small part.
    count = 2 * half_height * pitch
    convolved = np.zeros(count + pitch, np.float32)
    found, found_at = np.empty(count // 2, np.float32), np.empty(count // 2, np.int32)
    for item in range(first, last):
        group, image = item // images, item % images
        for out in range(weights.shape[1]):
            for channel in range(channels):
                taps = weights[group, out, channel]
                x = framed[group, image, channel].reshape(-1)
                y, z = x[pitch:], x[2 * pitch :]
                a0, a1, a2 = taps[0, 0], taps[0, 1], taps[0, 2]
                b0, b1, b2 = taps[1, 0], taps[1, 1], taps[1, 2]
                c0, c1, c2 = taps[2, 0], taps[2, 1], taps[2, 2]
                for i in range(count - 2):
                    total = a0 * x[i] + a1 * x[i + 1] + a2 * x[i + 2]
                    total += b0 * y[i] + b1 * y[i + 1] + b2 * y[i + 2]
                    total += c0 * z[i] + c1 * z[i + 1] + c2 * z[i + 2]
                    convolved[i] = convolved[i] + total if channel else total
            below = convolved[pitch:]
            for i in range(count // 2):
                a, b, c, d = convolved[2 * i], convolved[2 * i + 1], below[2 * i], below[2 * i + 1]
                found[i], found_at[i] = largest(a, b, c, d)
            for i in range(half_height):
                for j in range(half_width):
                    pooled[image, group, out, i, j] = found[i * pitch + j]
                    places[image, group, out, i, j] = np.uint8(found_at[i * pitch + j])


@jit(
    "void(float32[:, :, :, :, ::1], uint8[:, :, :, :, ::1], float32[:, :, :, :, ::1],"
    " float32[:, :, :, :, ::1], int64, int64)",
    of=_FLOAT32,
    fastmath={"contract"},
)
def _weigh(gradients, places, framed, of_weights, first, last):
    outs = of_weights.shape[1]
    for item in range(first, last):
        group, out = item // outs, item % outs
        for channel in range(of_weights.shape[2]):
            total = of_weights[group, out, channel]
            total[:] = 0
            for image in range(gradients.shape[0]):
                x = framed[group, image, channel]
                a0 = a1 = a2 = b0 = b1 = b2 = c0 = c1 = c2 = np.float32(0)
                for i in range(gradients.shape[3]):
                    for j in range(gradients.shape[4]):
                        gradient = gradients[image, group, out, i, j]
                        place = np.int64(places[image, group, out, i, j])
                        row, column = 2 * i + (place >> 1), 2 * j + (place & 1)
                        a0 += gradient * x[row, column]
                        a1 += gradient * x[row, column + 1]
                        a2 += gradient * x[row, column + 2]
                        b0 += gradient * x[row + 1, column]
                        b1 += gradient * x[row + 1, column + 1]
                        b2 += gradient * x[row + 1, column + 2]
                        c0 += gradient * x[row + 2, column]
                        c1 += gradient * x[row + 2, column + 1]
                        c2 += gradient * x[row + 2, column + 2]
                total[0, 0] += a0
                total[0, 1] += a1
                total[0, 2] += a2
                total[1, 0] += b0
                total[1, 1] += b1
                total[1, 2] += b2
                total[2, 0] += c0
                total[2, 1] += c1
                total[2, 2] += c2
