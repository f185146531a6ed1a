"""Max pooling of 2 x 2 that is fast on a CPU, alone and behind a convolution."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.grad import conv2d_input

from bagua_algos.worker_axis.linear import in_front


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
            or _is_nothing(input)
        ):
            return functional.max_pool2d(input, 2)
        pooled, _ = _Pool.apply(input)
        return pooled


def _is_nothing(images: Tensor) -> bool:
    """Whether nothing is left of images, or there are none: torch says what becomes of these."""
    return images.numel() == 0 or min(images.shape[-2:]) < 2


class PooledConv2d(nn.Conv2d):
    """A convolution of 3 x 3 without bias, then `HalvingMaxPool2d`: images [..., c, h, w] to
    [..., o, h // 2, w // 2].

    On a processor float32 of few channels goes through `kernels.pooled_convolution`: the values and
    gradients of the two, up to rounding, in a fraction of the time.
    """

    FEW_CHANNELS = 4
    """Of more, torch's convolution is the faster."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 3, padding=1, bias=False)
        self._pool = HalvingMaxPool2d()

    def forward(self, input: Tensor) -> Tensor:
        """The largest of each 2 x 2 numbers; an odd row or column at the end is left out."""
        if (
            self.in_channels > self.FEW_CHANNELS
            or input.dim() != 4
            or _is_nothing(input)
            or any(x.device.type != "cpu" or x.dtype != torch.float32 for x in (input, self.weight))
            or torch.is_autocast_enabled("cpu")
            or torch.compiler.is_compiling()
        ):
            return self._pool(super().forward(input))
        pooled, _ = _PoolConvolved.apply(input.unsqueeze(0), self.weight.unsqueeze(0))
        return pooled.squeeze(1)


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


class _PoolConvolved(torch.autograd.Function):
    """`images[g, b, c, h, w]`, `weights[g, o, c, 3, 3]` -> `[b, g, o, h // 2, w // 2]`, and where
    each largest number stood, which has no gradient.
    """

    @staticmethod
    def forward(images: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        from kernels.pooled_convolution import bordered, pool_convolved

        return pool_convolved(bordered(images), weights)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]
    ) -> None:
        _, places = output
        ctx.mark_non_differentiable(places)
        ctx.save_for_backward(*inputs, places)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradients: Tensor, _: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        from kernels.pooled_convolution import bordered, gradients_of_weights

        images, weights, places = ctx.saved_tensors
        of_images, of_weights = ctx.needs_input_grad
        return (
            _gradients_of_images(gradients, places, images, weights) if of_images else None,
            gradients_of_weights(gradients, places, bordered(images)) if of_weights else None,
        )

    @staticmethod
    def vmap(  # pyright: ignore[reportIncompatibleMethodOverride]
        info: Any, in_dims: tuple[int | None, int | None], images: Tensor, weights: Tensor
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        """Workers are further groups; of the outputs their axis is the second."""
        images_w, weights_w = (
            in_front(x, dim, info.batch_size)
            for x, dim in zip((images, weights), in_dims, strict=True)
        )
        groups = (info.batch_size, images_w.shape[1])
        outputs = _PoolConvolved.apply(images_w.flatten(0, 1), weights_w.flatten(0, 1))
        pooled, places = (x.unflatten(1, groups) for x in outputs)
        return (pooled, places), (1, 1)


def _gradients_of_images(
    gradients: Tensor, places: Tensor, images: Tensor, weights: Tensor
) -> Tensor:
    """By torch: few ask for those of a model's inputs."""
    from kernels.max_pool import spread

    groups, examples, channels, *size = images.shape
    shape = torch.Size((*gradients.shape[:3], *size))
    gradients = spread(gradients, places, shape).flatten(1, 2)
    shape = (examples, groups * channels, *size)
    of_images = conv2d_input(shape, weights.flatten(0, 1), gradients, padding=1, groups=groups)
    return of_images.unflatten(1, (groups, channels)).transpose(0, 1)


# torch asks for them at each call; to find them out takes longer than to pool a small image.
_Pool.forward.__signature__ = inspect.signature(_Pool.forward)
_PoolConvolved.forward.__signature__ = inspect.signature(_PoolConvolved.forward)
