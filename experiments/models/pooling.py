"""Max pooling of 2 x 2 that is fast on a CPU."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


class HalvingMaxPool2d(nn.MaxPool2d):
    """`nn.MaxPool2d(2)`: images [..., h, w] to [..., h // 2, w // 2].

    On a processor float32 goes through `kernels.max_pool`: the same bits in a tenth of the time of
    torch's kernel, which took a third of a small network's pass.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, input: Tensor) -> Tensor:
        """The largest of each 2 x 2 numbers; an odd row or column at the end is left out."""
        if (
            input.device.type != "cpu"
            or input.dtype != torch.float32
            or torch.compiler.is_compiling()
            or input.stride()[-2:] != (input.shape[-1], 1)  # as channels_last, which torch keeps
        ):
            return functional.max_pool2d(input, 2)
        pooled, _ = _Pool.apply(input)
        return pooled


class _Pool(torch.autograd.Function):
    """Also where each largest number stood, which has no gradient."""

    @staticmethod
    def forward(images: Tensor) -> tuple[Tensor, Tensor]:
        from kernels.max_pool import pool  # Numba takes long to import

        return pool(images)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        (images,), (_, places) = inputs, output
        ctx.shape = images.shape
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(places)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradients: Tensor, _: Tensor
    ) -> Tensor:
        from kernels.max_pool import spread

        (places,) = ctx.saved_tensors
        return spread(gradients, places, ctx.shape)

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any, in_dims: tuple[int | None], images: Tensor
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """Each image is pooled by itself, wherever in front the workers' axis is."""
        (dim,) = in_dims
        assert dim is not None, "vmap calls this for stacked images alone"
        if dim >= images.dim() - 2:
            images, dim = images.movedim(dim, 0), 0
        return _Pool.apply(images), (dim, dim)


# torch asks for it at each call; to find it out takes longer than to pool a small image.
_Pool.forward.__signature__ = inspect.signature(_Pool.forward)
