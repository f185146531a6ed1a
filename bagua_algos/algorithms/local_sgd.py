"""Local SGD: workers train apart and average weights every `interval` steps, not gradients.

    x_i <- optimizer(x_i, g_i)              every step, on every worker by itself
    x_i <- mean_j x_j                       every `interval` steps; or, with an outer optimizer,
    d   = mean_j (x0 - x_j)                 in full precision or by its codes
    x_i <- x0 <- outer(x0, d)               SlowMo, DiLoCo (`outer_optimizer.py`)

In the first `start_step` steps gradients are all-reduced instead (post-local SGD).

Papers: Stich, "Local SGD Converges Fast", arXiv 1805.09767, algorithm 1; Lin et al., "Don't Use
Large Mini-Batches, Use Local SGD" (post-local), arXiv 1808.07217; Wang et al., "SlowMo", arXiv
1910.00643, algorithm 1; Douillard et al., "DiLoCo", arXiv 2311.08105, algorithm 1. Differs from the
papers: nothing in the uncompressed rules. The inner optimizer's own buffers (momentum, Adam's
moments) stay local and are kept across averages: the first two papers have none, SlowMo leaves the
choice open (reset, maintain or average; this is "maintain"), DiLoCo does as we do. Each parameter
group has its own inner learning rate, as it is when weights are averaged. Codes of d are averaged
by C_LP_S (BAGUA, arXiv 2107.01499), so every worker ends with the same bits.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bagua_algos.checkpoint import kept
from bagua_algos.communication.hierarchy import levels
from bagua_algos.communication.primitives import (
    Residuals,
    all_reduce_mean_,
    compressed_all_reduce_mean_,
)
from bagua_algos.compressors.compressor import Compressor, Draw, warn_of_bias
from bagua_algos.engine.algorithm import Context, Hierarchical
from bagua_algos.engine.bucket import Bucket, Move
from bagua_algos.engine.parameter_groups import stretches
from bagua_algos.outer_optimizer import Nesterov, OuterOptimizer
from bagua_algos.settings import check_parts, check_whole


@kept
@dataclass(kw_only=True)
class OuterState:
    """One bucket of the outer optimizer: `anchor` (x0) and `momentum`, `[w, n]` and equal on all
    workers, and what codes of the outer gradient have left out.
    """

    anchor: Tensor
    momentum: Tensor
    residuals: Residuals | None


@dataclass(frozen=True, kw_only=True)
class LocalSGD(Hierarchical):
    """Weights averaged every `interval` steps, counted from `start_step`, before which gradients
    are all-reduced.

    State: with an outer optimizer, an `OuterState` a bucket; without one, nothing.

    Args:
        interval: steps from one averaging of the weights to the next.
        start_step: the step from which workers train apart; gradients are all-reduced before.
        outer: makes a step of the workers' mean: `SlowMo()`, or DiLoCo's `Nesterov()`. None: the
            mean itself.
        compressor: the code in which the outer gradient travels. None: in full precision.
        error_feedback: what a code leaves out is added at the next averaging.

    Raises:
        ValueError: a number out of range; a compressor without an outer optimizer, whose gradient
            it would compress; error feedback without a compressor.
    """

    workers_agree: ClassVar[bool] = False

    interval: int = 8
    start_step: int = 0
    outer: OuterOptimizer | None = None
    compressor: Compressor | None = None
    error_feedback: bool = False

    def __post_init__(self) -> None:
        check_parts(self)
        check_whole("interval", self.interval, least=1)
        check_whole("start_step", self.start_step, least=0)
        if self.compressor is not None and self.outer is None:
            raise ValueError(
                f"{self.compressor} would compress the outer gradient, but there is no outer "
                "optimizer: give outer=Nesterov(lr=1, momentum=0) for the plain mean"
            )
        if self.error_feedback and self.compressor is None:
            raise ValueError("error_feedback=True needs a compressor, got compressor=None")
        if self.compressor is not None:
            warn_of_bias(self.compressor, self.error_feedback)

    @property
    def family(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """DiLoCo is the one with Nesterov's outer optimizer."""
        return "DiLoCo" if isinstance(self.outer, Nesterov) else "local SGD"

    @property
    def num_early_steps(self) -> int:
        """The number of steps before `start_step`, which all-reduce gradients."""
        return self.start_step

    @property
    def steps_per_round(self) -> int:
        """The interval."""
        return self.interval

    @property
    def depends_on_buckets(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Codes are of chunks of a bucket."""
        return self.compressor is not None

    @property
    def all_reduces(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Codes travel otherwise."""
        return self.compressor is None

    @property
    def keeps_weights(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where an outer optimizer steps from those that workers began with."""
        return self.outer is not None

    def meets_in_backward(self, step: int) -> bool:
        """Only as long as workers train together."""
        return step < self.start_step

    def move_state(self, context: Context, move: Move) -> list[OuterState] | None:
        """Anchors and momenta in other buckets; without a compressor there are no residuals."""
        states: list[OuterState] | None = context.state
        if states is None:
            return None
        anchors = move.carry([state.anchor for state in states])
        momenta = move.carry([state.momentum for state in states])
        return [
            OuterState(anchor=anchor, momentum=momentum, residuals=None)
            for anchor, momentum in zip(anchors, momenta, strict=True)
        ]

    def init(self, context: Context) -> list[OuterState] | None:
        """The outer optimizer's state, at rest; `ValueError` for a weight that no optimizer has."""
        levels(context.communicator, self.hierarchical)  # raises
        if self.outer is None:
            return None
        for bucket in context.buckets:
            stretches(bucket, context.optimizer)  # raises
        return [
            OuterState(
                anchor=bucket.weights.clone(),
                momentum=torch.zeros_like(bucket.weights),
                residuals=Residuals.zeros_like(
                    bucket.weights, context.communicator, self.hierarchical
                )
                if self.error_feedback
                else None,
            )
            for bucket in context.buckets
        ]

    def on_bucket_ready(self, context: Context, bucket: Bucket) -> None:
        """Average the bucket's gradients as long as workers train together."""
        if context.step < self.start_step:
            all_reduce_mean_(bucket.gradients, context.communicator, self.hierarchical)

    def on_step_end(self, context: Context) -> None:
        """Average the weights where the interval ends."""
        num_local_steps = context.step + 1 - self.start_step
        if num_local_steps == 0 and self.outer is not None:
            for bucket in context.buckets:  # from here on workers go apart
                context.state[bucket.index].anchor.copy_(bucket.weights)
        if num_local_steps > 0 and num_local_steps % self.interval == 0:
            self._check_rates(context)
            for bucket in context.buckets:
                self._meet(context, bucket)

    def _check_rates(self, context: Context) -> None:
        check = getattr(self.outer, "check", None)
        if check is not None:
            for bucket in context.buckets:
                for stretch in stretches(bucket, context.optimizer):
                    check(float(stretch.options(context.optimizer)["lr"]))

    def _meet(self, context: Context, bucket: Bucket) -> None:
        if self.outer is None:
            all_reduce_mean_(bucket.weights, context.communicator, self.hierarchical)
            return
        state: OuterState = context.state[bucket.index]
        # The weights' storage holds the outer gradient for a moment: training waits, none sees it.
        outer_gradient = torch.sub(state.anchor, bucket.weights, out=bucket.weights)
        if self.compressor is None:
            all_reduce_mean_(outer_gradient, context.communicator, self.hierarchical)
        else:
            compressed_all_reduce_mean_(
                outer_gradient,
                bucket.numel,
                context.communicator,
                self.compressor,
                state.residuals,
                Draw(ranks=context.communicator.ranks, step=context.step, bucket=bucket.index),
                self.hierarchical,
            )
        for stretch in stretches(bucket, context.optimizer):
            self.outer.step_(
                state.anchor[stretch.columns],
                outer_gradient[stretch.columns],
                state.momentum[stretch.columns],
                float(stretch.options(context.optimizer)["lr"]),
            )
        bucket.weights.copy_(state.anchor)
