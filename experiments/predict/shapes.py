"""Models that are too large to train here, as shapes: their parameters and their work by layer.

Computed from the architectures as published:

    vgg16        Simonyan and Zisserman, arXiv 1409.1556, configuration D
    resnet50     He et al., arXiv 1512.03385, with the stride in the 3x3 convolutions ("v1.5")
    bert_large   Devlin et al., arXiv 1810.04805, pre-training, sequences of 128 tokens

FLOPs are those of matrix products and convolutions as defined, 2 a multiplication; Winograd's
convolutions need fewer. Normalizations, activations and pooling count nothing.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Parameters whose gradients are final at the same time, and FLOPs of forward, an example."""

    parameters: tuple[Shape, ...]
    forward_flops: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A model's `layers` in the order of forward."""

    name: str
    layers: tuple[Layer, ...]

    @property
    def parameters(self) -> list[Shape]:
        """In the order of forward."""
        return [shape for layer in self.layers for shape in layer.parameters]

    @property
    def num_parameters(self) -> int:
        """How many numbers are trained."""
        return sum(math.prod(shape) for shape in self.parameters)

    @property
    def forward_flops(self) -> float:
        """Of one example."""
        return sum(layer.forward_flops for layer in self.layers)

    @property
    def backward_flops(self) -> float:
        """Of one example."""
        return sum(self._backward_flops())

    def ready_shares(self) -> list[float]:
        """For each of `parameters`, the share of backward that is done once its gradient is
        final.
        """
        done = list(accumulate(self._backward_flops()))
        pairs = zip(self.layers, reversed(done), strict=True)
        return [flops / done[-1] for layer, flops in pairs for _ in layer.parameters]

    def _backward_flops(self) -> list[float]:
        """By layer, last first: the gradients of weights and of inputs each take what forward
        took; the input of the first layer is data, and needs none.
        """
        first, *others = (layer.forward_flops for layer in self.layers)
        return [*(2 * flops for flops in reversed(others)), first]


def vgg16() -> ModelShape:
    """On images of 224 x 224, with 1,000 classes."""
    layers, channels, side = [], 3, 224
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers.append(_convolution(channels, width, kernel=3, side=side, has_bias=True))
            channels = width
        side //= 2
    features = channels * side**2
    for width in (4096, 4096, 1000):
        layers.append(_linear(features, width))
        features = width
    return ModelShape(name="vgg16", layers=tuple(layers))


def resnet50() -> ModelShape:
    """On images of 224 x 224, with 1,000 classes."""
    layers = list(_normalized(3, 64, kernel=7, side=112))
    channels, side = 64, 56
    for stage, depth in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(depth):
            before, side = side, side // 2 if stage and not block else side
            layers += _normalized(channels, width, kernel=1, side=before)
            layers += _normalized(width, width, kernel=3, side=side)
            layers += _normalized(width, 4 * width, kernel=1, side=side)
            if not block:
                layers += _normalized(channels, 4 * width, kernel=1, side=side)
            channels = 4 * width
    layers.append(_linear(channels, 1000))
    return ModelShape(name="resnet50", layers=tuple(layers))


def bert_large(num_tokens: int = 128) -> ModelShape:
    """With the heads of pre-training; the decoder's matrix is the embedding's, so that its gradient
    is final with backward's end.
    """
    vocabulary, width, inner = 30522, 1024, 4096
    norm = Layer(parameters=((width,), (width,)))
    projection = _linear(width, width, num_tokens)
    products = Layer(parameters=(), forward_flops=2 * 2 * num_tokens**2 * width)
    block = [
        *(projection, projection, projection, products, projection, norm),
        *(_linear(width, inner, num_tokens), _linear(inner, width, num_tokens), norm),
    ]
    decoder = Layer(parameters=((vocabulary,),), forward_flops=2 * num_tokens * width * vocabulary)
    layers = [
        Layer(parameters=((vocabulary, width), (512, width), (2, width))),
        *(norm, *24 * block),
        *(_linear(width, width), projection, norm, decoder, _linear(width, 2)),
    ]
    return ModelShape(name="bert_large", layers=tuple(layers))


MODELS: dict[str, Callable[[], ModelShape]] = {
    "vgg16": vgg16,
    "resnet50": resnet50,
    "bert_large": bert_large,
}


def _linear(num_in: int, num_out: int, num_rows: int = 1) -> Layer:
    return Layer(
        parameters=((num_out, num_in), (num_out,)), forward_flops=2 * num_rows * num_in * num_out
    )


def _convolution(
    num_in: int, num_out: int, *, kernel: int, side: int, has_bias: bool = False
) -> Layer:
    """`side`: of its square output."""
    weight = (num_out, num_in, kernel, kernel)
    return Layer(
        parameters=(weight, (num_out,)) if has_bias else (weight,),
        forward_flops=2 * num_in * num_out * kernel**2 * side**2,
    )


def _normalized(num_in: int, num_out: int, *, kernel: int, side: int) -> Iterator[Layer]:
    """A convolution, and the scales and shifts of its BatchNorm."""
    yield _convolution(num_in, num_out, kernel=kernel, side=side)
    yield Layer(parameters=((num_out,), (num_out,)))
