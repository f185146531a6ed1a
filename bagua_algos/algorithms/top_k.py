"""Top-k: only the largest gradients travel; the others wait until they have grown. With momentum,
clipping and warm-up it is Deep Gradient Compression (DGC).

    u_j = momentum * u_j + clip(g_j)            momentum correction; u_j = g_j without
    v_j = v_j + u_j                             error feedback
    S_j = the `ratio` largest of |v_j|          send (S_j, v_j[S_j]) to everyone
    v_j[S_j] = 0,  u_j[S_j] = 0                 momentum factor masking
    x  <- optimizer(x, mean_j v_j[S_j])         zero where nobody sent

A gradient waits about 1 / ratio steps and then arrives as a sum of them. If the learning rate suits
one step but not the sum, training diverges; a smaller rate, a greater ratio or warm-up cures it.

Papers: top-k with error feedback: Stich et al., arXiv 1809.07599, Algorithm 1; DGC: Lin et al.,
arXiv 1712.01887, section 3. Clipping is local, to clip_norm / sqrt(N); warm-up lets the ratio fall
exponentially. Differs from DGC: the largest are chosen in a bucket, not in a layer, and exactly,
not by a sampled threshold; the ratio falls with every step, not with every epoch; no Nesterov
momentum. With `clip_norm` nothing travels before backward has ended, since the norm covers all
gradients.
"""

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.optim import Optimizer

from bagua_algos.checkpoint import kept
from bagua_algos.compressors.compressor import REAL_DTYPES, forget_overflow_
from bagua_algos.compressors.largest import Largest, Sparse
from bagua_algos.engine.algorithm import Algorithm, Context
from bagua_algos.engine.bucket import Bucket
from bagua_algos.settings import check_whole


@kept
@dataclass(frozen=True, eq=False, kw_only=True)
class Memory:
    """State of one bucket, `[w, numel]` each in float32 at least, where a sum of many small
    gradients does not lose them: `unsent` gradients (v) and `velocity` (u); None where not kept.
    """

    unsent: Tensor | None
    velocity: Tensor | None


@dataclass(frozen=True, kw_only=True)
class TopK(Algorithm):
    """Centralized, sparse, synchronous. State: `Memory`, one a bucket.

    Warns where error feedback is off.

    Args:
        ratio: the part of a bucket's gradients that every worker sends, in (0, 1].
        error_feedback: what is not sent is added to the gradients of the next step.
        momentum: in [0, 1). More than 0 replaces the optimizer's momentum; `check` refuses both
            together.
        momentum_masking: the momentum of what was sent begins at zero again.
        clip_norm: each worker's gradients are scaled down to a norm of `clip_norm / sqrt(number of
            workers)` at most; None: they are not.
        warmup_steps: the first steps, in which the part that is sent falls exponentially to
            `ratio`.

    Raises:
        ValueError: a number out of range, or momentum without error feedback.
    """

    family = "sparse or low-rank"
    dtypes = REAL_DTYPES
    all_reduces = False
    gradients_agree = True

    ratio: float = 0.01
    error_feedback: bool = True
    momentum: float = 0.0
    momentum_masking: bool = True
    clip_norm: float | None = None
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        Largest(ratio=self.ratio)  # raises
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise ValueError(f"clip_norm must be more than 0 or None, got {self.clip_norm}")
        check_whole("warmup_steps", self.warmup_steps, least=0)
        if self.momentum and not self.error_feedback:
            raise ValueError(
                f"momentum={self.momentum} needs error_feedback=true: momentum correction "
                "accumulates what was not sent (arXiv 1712.01887, section 3.2)"
            )
        if not self.error_feedback and self.ratio < 1:
            warnings.warn(
                f"top-k drops {1 - self.ratio:.0%} of the gradients for good without error "
                "feedback, and may not converge (arXiv 1809.07599); set error_feedback=true",
                stacklevel=3,
            )

    @property
    def takes_one_backward(self) -> bool:
        """With momentum, which every pass would take for a step, and with clipping, which would
        take what it has clipped for a gradient.
        """
        return bool(self.momentum) or self.clip_norm is not None

    @property
    def keeps_unsent(self) -> bool:
        """With error feedback."""
        return self.error_feedback

    @property
    def num_early_steps(self) -> int:
        """The number of warm-up steps, in which the ratio falls."""
        return self.warmup_steps

    def check(self, world_size: int, optimizer: Optimizer) -> None:
        """Raise `ValueError` if both this algorithm and the optimizer keep momentum."""
        if not self.momentum:
            return
        for group in optimizer.param_groups:
            own = group.get("momentum", 0) or group.get("betas", (0,))[0]
            if own:
                raise ValueError(
                    f"the optimizer's own momentum is {own}, and TopK(momentum=...) keeps "
                    "momentum itself: a delayed gradient would gain it twice (arXiv 1712.01887, "
                    "section 3.2); set the optimizer's to 0"
                )

    def check_shards(self) -> None:
        """Raise `ValueError` where it clips: the norm would be of a shard."""
        if self.clip_norm is not None:
            raise ValueError(
                "TopK(clip_norm=...) would clip by the norm of a process's own shard: leave "
                "clip_norm out and call torch.nn.utils.clip_grad_norm_, which knows of shards"
            )

    def init(self, context: Context) -> list[Memory]:
        """Nothing unsent and no velocity."""

        def zeros(bucket: Bucket) -> Tensor:
            dtype = torch.promote_types(bucket.gradients.dtype, torch.float32)
            return torch.zeros_like(bucket.gradients[:, : bucket.numel], dtype=dtype)

        return [
            Memory(
                unsent=zeros(bucket) if self.error_feedback else None,
                velocity=zeros(bucket) if self.momentum else None,
            )
            for bucket in context.buckets
        ]

    def ratio_at(self, step: int) -> float:
        """The share that is sent in optimizer step `step`: falls exponentially in warm-up."""
        return self.ratio ** min(1.0, (step + 1) / (self.warmup_steps + 1))

    def on_bucket_ready(self, context: Context, bucket: Bucket) -> None:
        """Exchange the bucket's largest, unless all gradients must be clipped first."""
        if self.clip_norm is None:
            self._exchange(context, bucket)

    def on_backward_end(self, context: Context) -> None:
        """Clip the gradients, and exchange every bucket's largest, where clipping is on."""
        if self.clip_norm is None:
            return
        _clip_(context, self.clip_norm / math.sqrt(context.communicator.world_size))
        for bucket in context.buckets:
            self._exchange(context, bucket)

    def _exchange(self, context: Context, bucket: Bucket) -> None:
        memory = Memory(unsent=None, velocity=None)
        if self.error_feedback:
            memory = context.state[bucket.index]
        gradients_wn = bucket.gradients[:, : bucket.numel]
        v_wn = gradients_wn
        if memory.velocity is not None:
            v_wn = memory.velocity.mul_(self.momentum).add_(v_wn)
        if memory.unsent is not None:
            v_wn = memory.unsent.add_(v_wn)
        sent = Largest(ratio=self.ratio_at(context.step)).select(v_wn)
        if memory.unsent is not None:
            forget_overflow_(memory.unsent.scatter_(1, sent.indices, 0))
        if memory.velocity is not None:
            if self.momentum_masking:
                memory.velocity.scatter_(1, sent.indices, 0)
            forget_overflow_(memory.velocity)
        # Every worker receives the same: read and summed once for all that this process holds.
        gathered_N = Sparse.unpack(context.communicator.all_gather(sent.pack())[0])
        gradients_wn.copy_(_mean(gathered_N, bucket.numel))


def _mean(gathered_N: Sparse, numel: int) -> Tensor:
    """`[1, numel]`: the workers' mean, added up in order of rank so that all get the same bits."""
    indices_Nk, values_Nk = gathered_N.indices, gathered_N.values
    total_n = values_Nk.new_zeros(numel)
    for indices_k, values_k in zip(indices_Nk, values_Nk, strict=True):
        total_n[indices_k] += values_k
    return total_n.div_(len(values_Nk)).unsqueeze(0)


def _clip_(context: Context, max_norm: float) -> None:
    """Scale every worker's gradients down to a norm of `max_norm` at most."""
    norms_bw = torch.stack([_norms(b.gradients[:, : b.numel]) for b in context.buckets])
    scale_w = (max_norm / norms_bw.norm(dim=0)).clamp(max=1.0)
    for bucket in context.buckets:
        bucket.gradients.mul_(scale_w.unsqueeze(1))


def _norms(x_wn: Tensor) -> Tensor:
    """`[w]`, in float32 at least: those of many float16 are beyond its range."""
    dtype = torch.promote_types(x_wn.dtype, torch.float32)
    return torch.linalg.vector_norm(x_wn, dim=1, dtype=dtype)
