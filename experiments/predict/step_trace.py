"""What a training step computes, as `trace` records it: its operations, gradients and layers."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]

KINDS = ("convolution", "convolution_3x3", "matrix", "attention", "recurrent", "elementwise")
"""Of operations; 3x3 convolutions of stride 1 can be done by Winograd's algorithm."""


@dataclass(kw_only=True)
class Work:
    """Operations in the order in which they run: `kinds` (places in `KINDS`), FLOPs and bytes."""

    kinds: list[int] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)
    num_bytes: list[float] = field(default_factory=list)

    def add(self, kind: str, flops: float, num_bytes: float) -> None:
        """One operation more."""
        self.kinds.append(KINDS.index(kind))
        self.flops.append(flops)
        self.num_bytes.append(num_bytes)

    @cached_property
    def arrays(self) -> tuple[NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]:
        """Kinds, FLOPs and bytes, `[operations]` each; once all are known."""
        return np.array(self.kinds, np.intp), np.array(self.flops), np.array(self.num_bytes)

    def flops_of(self, kind: str) -> float:
        """Of all operations of a kind."""
        kinds, flops, _ = self.arrays
        return float(flops[kinds == KINDS.index(kind)].sum())


@dataclass(kw_only=True)
class LayerFlops:
    """Of one module itself, without the modules in it."""

    forward: float = 0.0
    backward: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StepTrace:
    """A training step of `batch_size` examples of `model`.

    `parameters` are the shapes of those that are trained, in the order in which the model has them;
    `arrivals[i]` counts the operations of backward after which the gradient of `parameters[i]` is
    final, None if it gets none. `layers` are by the name of the module. `buffer_bytes` are the
    model's buffers, such as the moving averages of BatchNorm, the sum of each type.
    """

    model: str
    batch_size: int
    parameters: tuple[Shape, ...]
    arrivals: tuple[int | None, ...]
    forward: Work
    backward: Work
    layers: dict[str, LayerFlops]
    buffer_bytes: tuple[int, ...] = ()

    @property
    def num_parameters(self) -> int:
        """How many numbers are trained."""
        return sum(int(np.prod(shape)) for shape in self.parameters)

    @property
    def forward_flops(self) -> float:
        """Of all examples."""
        return sum(self.forward.flops)

    @property
    def backward_flops(self) -> float:
        """Of all examples."""
        return sum(self.backward.flops)
