"""Training in fp16 with torch's own `GradScaler`: all workers agree on each overflow.

    gradients / scale                  once backward has ended; algorithms see no scale
    has any worker overflowed?         one small all-reduce
        no:     the algorithm, as usual; then gradients * scale
        yes:    all gradients infinite, on every worker; the algorithm sees nothing of this step

The user's scaler, an unmodified one, then does the same on every worker: it unscales and steps, or
skips the step and lowers its scale. Scales are powers of two, so that multiplying by one rounds
nothing. The all-reduce costs a message a step, also where an algorithm sends none (bf16 needs no
scaler). Workers that average asynchronously are spared it: each skips its own steps.

A scaler looks at the gradients of the optimizer that steps, and at no others. Infinite ones that
nobody clears, of a layer that is in no optimizer, would be an overflow for ever. So they become
zeros when the scaler has lowered its scale and the next backward pass begins.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from bagua_algos.engine.bucket import Bucket
from bagua_algos.engine.call_stack import running
from bagua_algos.engine.parameter_groups import group_of


class ScaledGradients:
    """The buckets' gradients, times the scale of a `GradScaler`.

    Args:
        scaler: an enabled one; it is only read.
        buckets: all of a model's buckets.
        optimizer: the distributed one.
    """

    _scale: float
    """By which `unscale_` has divided."""

    def __init__(self, scaler: GradScaler, buckets: Sequence[Bucket], optimizer: Optimizer) -> None:
        self.scaler = scaler
        self._buckets = buckets
        self._optimizer = optimizer
        self._infinite: list[nn.Parameter] = []

    @classmethod
    def of(
        cls, scaler: GradScaler | None, buckets: Sequence[Bucket], optimizer: Optimizer
    ) -> "ScaledGradients | None":
        """None where nothing scales them."""
        if scaler is None or not scaler.is_enabled():
            return None
        return cls(scaler, buckets, optimizer)

    def have_scale(self) -> None:
        """Let the scaler have its first scale, without which it refuses a step: it makes one when
        it scales the first loss, and a worker without examples has none.
        """
        self.scaler.scale(self._buckets[0].gradients.new_zeros(()))

    def clear_overflow_(self) -> None:
        """Gradients of an overflow that the scaler has answered with a lower scale become zeros,
        if they are in another optimizer or in none, and nobody has cleared them. To be called when
        a backward pass has computed its first gradient.
        """
        if not self._infinite or self.scaler.get_scale() == self._scale:
            return
        for parameter in self._infinite:
            gradient = parameter.grad
            if gradient is not None and not gradient.isfinite().any():
                gradient.zero_()
        self._infinite = []

    def unscale_(self, average_: Callable[[Tensor], None] | None) -> bool:
        """Divide by the scale. Returns whether that overflowed on any worker, where all gradients
        become infinite, for the scaler to find it, whatever it looks at.

        `average_` takes `[w, 1]` of all workers. None: no overflow is looked for. Raises
        `ValueError` where so many steps have overflowed that the scale is 0.
        """
        self._scale = self.scaler.get_scale()
        if not self._scale:
            raise ValueError(
                "the GradScaler's scale has fallen to 0, because step after step overflowed: look "
                "for what makes the loss or a gradient infinite or NaN at any scale"
            )
        for bucket in self._buckets:
            bucket.gradients.mul_(1 / self._scale)
        if average_ is None:
            return False
        data_bwn = [bucket.gradients[:, : bucket.numel] for bucket in self._buckets]
        flags_bw = [data_wn.isfinite().all(1).logical_not() for data_wn in data_bwn]
        flags_w = torch.stack(flags_bw).any(0).float().unsqueeze(1)
        average_(flags_w)
        if not flags_w.any():
            return False
        for bucket in self._buckets:
            for view in bucket.gradient_views():
                view.fill_(math.inf)
        own = group_of(self._optimizer)
        self._infinite = [p for bucket in self._buckets for p in bucket.parameters if p not in own]
        return True

    def rescale_(self) -> None:
        """Multiply by the same scale again, for the scaler to find what it expects."""
        for bucket in self._buckets:
            bucket.gradients.mul_(self._scale)

    def move_to(self, buckets: Sequence[Bucket]) -> None:
        """Gradients are in other buckets from here on."""
        self._buckets = buckets


def check_scaler_is_known(scaled: ScaledGradients | None) -> None:
    """Raise `ValueError` if an optimizer's step runs for another enabled `GradScaler` than the one
    in `scaled`; call it within the step.
    """
    call = running(GradScaler.step)
    if call is None:
        return
    scaler = call.f_locals["self"]
    if scaler.is_enabled() and (scaled is None or scaled.scaler is not scaler):
        raise ValueError(
            "a GradScaler scales the gradients that this algorithm remembers, and may skip a step "
            "on one worker alone: give it to distribute(..., grad_scaler=scaler)"
        )
