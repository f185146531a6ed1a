"""QAdam: Adam that learns its second moment, then freezes it and sends momenta in few bits.

    k < warmup_steps    torch's own Adam or AdamW on mean_j g_j
    after               m_j <- b1 m + (1 - b1) g_j          on worker j, per bucket during backward
                        m   <- C_LP_S average of m_j
                        x   <- x - lr m / (1 - b1^k) / (sqrt(v / (1 - b2^K)) + eps)

K, v: Adam's count of steps and second moment at the switch. Weight decay is Adam's (added to g_j)
or AdamW's (x <- (1 - lr wd) x). With a 1-bit sign compressor and error feedback it is 1-bit Adam.

A sign code gives each element of a chunk a momentum of one size, and where v is far below the
chunk's (a bias before BatchNorm has gradients of rounding alone) x is thrown about. `precondition`
cures it: what is averaged, in place of m, is u <- b1 u + (1 - b1) g_j / (sqrt(v / (1 - b2^K)) +
eps), the same rule but for the codes' errors, which are then of one size in steps of x. It does not
suit MinMaxUInt8: a few large u widen the range of a chunk.

Papers: Tang et al., "1-bit Adam", arXiv 2102.02888, algorithm 1; the 8-bit form without error
feedback: Gan et al., "BAGUA", arXiv 2107.01499. Differs from the papers: bias corrections are
Adam's, and the correction of v is frozen with v; each parameter group has its own lr, betas, eps
and weight decay, as they are at the step (eps: at the switch); `precondition`; an element whose
gradient was zero all through warm-up rests, where the paper would divide by eps.

After the switch the user's optimizer.step() finds no gradients and changes nothing. Backward leaves
this worker's own gradients behind, and clipping them has no effect. Adam's moments have moved from
the optimizer to the algorithm's state, and return when training ends.
"""

import math
import warnings
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.optim import Adam, AdamW, Optimizer

from bagua_algos.communication.hierarchy import levels
from bagua_algos.communication.primitives import (
    Residuals,
    all_reduce_mean_,
    compressed_all_reduce_mean_,
)
from bagua_algos.compressors.compressor import Compressor, Draw, warn_of_bias
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from bagua_algos.engine.algorithm import Context, Hierarchical
from bagua_algos.engine.bucket import Bucket
from bagua_algos.engine.parameter_groups import Stretch, stretches


@dataclass(kw_only=True)
class Moments:
    """One bucket after the switch, in float32 `[w, n]`: `m` (or u), and the frozen `denominator`
    sqrt(v / (1 - b2^K)) + eps, infinite where v is 0. Equal on all workers, but for m in backward.
    """

    m: Tensor
    denominator: Tensor
    residuals: Residuals | None


@dataclass(kw_only=True)
class QAdamState:
    """`moments`, one a bucket, are empty during warm-up; `num_steps` is Adam's count after it."""

    stretches: list[list[Stretch]]
    moments: list[Moments]
    num_steps: int = 0


@dataclass(frozen=True, kw_only=True)
class QAdam(Hierarchical):
    """Adam with compressed momenta after `warmup_steps`, on the user's own `torch.optim.Adam` or
    `AdamW`.

    Warm-up should last until the second moments are steady: 15 to 25 % of all steps.

    Raises:
        ValueError: fewer than one step of warm-up, which would leave the second moment zero.
    """

    family = "compressed Adam"

    warmup_steps: int = 200
    compressor: Compressor = field(default_factory=MinMaxUInt8)
    error_feedback: bool = False
    precondition: bool = False

    def __post_init__(self) -> None:
        if self.warmup_steps < 1:
            raise ValueError(
                "warmup_steps must be at least 1, for Adam's second moment to be known, "
                f"got {self.warmup_steps}"
            )
        warn_of_bias(self.compressor, self.error_feedback)
        if self.precondition and isinstance(self.compressor, MinMaxUInt8):
            warnings.warn(
                "MinMaxUInt8 spaces its levels by a chunk's extremes, and precondition=true makes "
                "them extreme: set precondition=false, which is for codes of signs",
                stacklevel=3,
            )

    @property
    def num_early_steps(self) -> int:
        """The number of warm-up steps, in which Adam runs on averaged gradients."""
        return self.warmup_steps

    def check(self, world_size: int, optimizer: Optimizer) -> None:
        """Raise `ValueError` unless the optimizer is Adam or AdamW with supported options."""
        if type(optimizer) not in (Adam, AdamW):
            raise ValueError(
                f"QAdam continues torch.optim.Adam or AdamW, got {type(optimizer).__name__}: "
                "another optimizer has other moments, or none"
            )
        for group in optimizer.param_groups:
            for option, reason in {
                "amsgrad": "its second moment is a running maximum, which is not frozen",
                "maximize": "it ascends; negate the loss instead",
            }.items():
                if group[option]:
                    raise ValueError(f"QAdam does not support {option}=True: {reason}")

    def init(self, context: Context) -> QAdamState:
        """Nothing but the layout yet."""
        levels(context.communicator, self.hierarchical)  # raises
        return QAdamState(
            stretches=[stretches(b, context.optimizer) for b in context.buckets], moments=[]
        )

    def on_bucket_ready(self, context: Context, bucket: Bucket) -> None:
        """Average the bucket's gradients; after the switch its momenta, by their codes."""
        state: QAdamState = context.state
        if not state.moments:
            all_reduce_mean_(bucket.gradients, context.communicator, self.hierarchical)
            return
        moments = state.moments[bucket.index]
        for stretch in state.stretches[bucket.index]:
            options, columns = stretch.options(context.optimizer), stretch.columns
            gradient = bucket.gradients[columns].float()
            if not options["decoupled_weight_decay"]:
                gradient = gradient.add(bucket.weights[columns], alpha=options["weight_decay"])
            if self.precondition:
                gradient = gradient / moments.denominator[columns]
            moments.m[columns].lerp_(gradient, 1 - float(options["betas"][0]))
        compressed_all_reduce_mean_(
            moments.m,
            bucket.numel,
            context.communicator,
            self.compressor,
            moments.residuals,
            Draw(ranks=context.communicator.ranks, step=context.step, bucket=bucket.index),
            self.hierarchical,
        )

    def on_step_begin(self, context: Context) -> None:
        """After the switch, leave nothing for the user's optimizer to do."""
        if context.state.moments:
            for bucket in context.buckets:
                for parameter in bucket.parameters:
                    parameter.grad = None

    def on_step_end(self, context: Context) -> None:
        """Update the weights; in the last step of warm-up, switch."""
        state: QAdamState = context.state
        if state.moments:
            state.num_steps += 1
            for bucket in context.buckets:
                self._update_weights(context, bucket)
        elif context.step + 1 >= self.warmup_steps:
            self._switch(context)

    def on_close(self, context: Context) -> None:
        """Give Adam's moments back to the user's optimizer."""
        state: QAdamState = context.state
        for bucket, moments in zip(context.buckets, state.moments, strict=False):
            m, v = torch.zeros_like(moments.m), torch.zeros_like(moments.m)
            for stretch in state.stretches[bucket.index]:
                options, columns = stretch.options(context.optimizer), stretch.columns
                denominator = moments.denominator[columns]
                denominator = denominator.masked_fill(denominator.isinf(), options["eps"])
                m[columns] = moments.m[columns] * (denominator if self.precondition else 1)
                # As Adam will correct it: by all its steps, where v was frozen at the switch.
                correction = 1 - float(options["betas"][1]) ** state.num_steps
                v[columns] = (denominator - options["eps"]).square() * correction
            sizes = [p.numel() // len(m) for p in bucket.parameters]
            parts = (x[:, : bucket.numel].split(sizes, 1) for x in (m, v))
            for parameter, exp_avg, exp_avg_sq in zip(bucket.parameters, *parts, strict=True):
                context.optimizer.state[parameter] = {
                    "step": torch.tensor(float(state.num_steps)),
                    "exp_avg": exp_avg.reshape(parameter.shape).to(parameter.dtype),
                    "exp_avg_sq": exp_avg_sq.reshape(parameter.shape).to(parameter.dtype),
                }
        state.moments = []

    def _update_weights(self, context: Context, bucket: Bucket) -> None:
        state: QAdamState = context.state
        moments = state.moments[bucket.index]
        for stretch in state.stretches[bucket.index]:
            options, columns = stretch.options(context.optimizer), stretch.columns
            lr, beta1 = float(options["lr"]), float(options["betas"][0])
            weights, m, denominator = (
                x[columns] for x in (bucket.weights, moments.m, moments.denominator)
            )
            if options["decoupled_weight_decay"]:
                weights.mul_(1 - lr * options["weight_decay"])
            if self.precondition:
                denominator = torch.where(denominator.isinf(), denominator, 1.0)
            weights.addcdiv_(m, denominator, value=-lr / (1 - beta1**state.num_steps))

    def _switch(self, context: Context) -> None:
        """Take Adam's moments over from the user's optimizer."""
        state: QAdamState = context.state
        optimizer = context.optimizer
        parameters = [p for bucket in context.buckets for p in bucket.parameters]
        state.num_steps = max(
            int(optimizer.state[p]["step"]) for p in parameters if optimizer.state[p]
        )
        for bucket in context.buckets:
            m, v = (_flat(bucket, optimizer, name) for name in ("exp_avg", "exp_avg_sq"))
            denominator = v.sqrt().masked_fill_(v == 0, math.inf)
            for stretch in state.stretches[bucket.index]:
                options, columns = stretch.options(optimizer), stretch.columns
                beta2 = float(options["betas"][1])
                denominator[columns].div_(math.sqrt(1 - beta2**state.num_steps))
                denominator[columns].add_(options["eps"])
            state.moments.append(
                Moments(
                    m=m / denominator if self.precondition else m,
                    denominator=denominator,
                    residuals=Residuals.zeros_like(m, context.communicator, self.hierarchical)
                    if self.error_feedback
                    else None,
                )
            )
        for parameter in parameters:
            optimizer.state.pop(parameter, None)


def _flat(bucket: Bucket, optimizer: Optimizer, name: str) -> Tensor:
    """The optimizer's `name` of all parameters of `bucket`, laid out as the bucket is: `[w, n]`."""
    flat_wn = torch.zeros_like(bucket.weights, dtype=torch.float32)
    # A parameter that nothing has used yet has none.
    moments = [optimizer.state[p].get(name, torch.zeros_like(p)) for p in bucket.parameters]
    parts = [moment.reshape(len(flat_wn), -1) for moment in moments]
    flat_wn[:, : bucket.numel] = torch.cat(parts, 1)
    return flat_wn
