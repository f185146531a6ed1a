"""PowerSGD: gradient matrices travel as two thin factors, by one step of power iteration each
training step.

    M_j = g_j + e_j                    a parameter's gradient as a matrix [n, m]
    P   = orthonormal(mean_j M_j Q)    [n, r]
    Q   = mean_j M_j^T P               [m, r], kept: the next step's power iteration starts there
    g   = P Q^T,  e_j = M_j - g
    x  <- optimizer(x, g)

Paper: Vogels et al., "PowerSGD", arXiv 1905.13727, Algorithms 1 and 2. As in PyTorch's
powerSGD_hook, a parameter travels as it is if its factors would not save `min_compression_rate`
(biases always do), and so does everything for the first `warmup_steps`. Differs from the paper: QR
replaces Gram-Schmidt, so that a column of zeros neither divides by zero nor stays zero; the
optimizer keeps the momentum. Differs from the hook: Q is normalised, not orthonormalised, before
its use (the columns span the same, so only rounding changes), and a bucket's uncompressed
parameters share the message of its Ps: two all-reduces a bucket, not three; those leave out
nothing, so no e is kept of them. A step that overflows leaves Q as it was and e at zero.

Shape suffixes: w workers held here, n rows, m columns, r rank; all after the first factor agree
on every worker, so Q is held once, [1, m, r].
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bagua_algos.checkpoint import kept
from bagua_algos.communication.hierarchy import levels
from bagua_algos.communication.primitives import all_reduce_mean_
from bagua_algos.compressors.compressor import REAL_DTYPES, forget_overflow_
from bagua_algos.engine.algorithm import Context, Hierarchical
from bagua_algos.engine.bucket import Bucket, Move
from bagua_algos.settings import check_whole


@kept
@dataclass(frozen=True, eq=False, kw_only=True)
class Factors:
    """State of one bucket, in float32 at least: what was left out, `residual[w, numel]` (None
    without error feedback), and `q`, `[1, m, r]` for each compressed parameter.
    """

    residual: Tensor | None
    q: list[Tensor]


@dataclass(frozen=True, kw_only=True)
class PowerSGD(Hierarchical):
    """Centralized, low rank, synchronous. State: `Factors`, one a bucket.

    Args:
        rank: columns of the two thin factors that stand for a gradient matrix. More columns
            approximate it better and take more bytes.
        error_feedback: what the factors leave out is added to the gradients of the next step.
        min_compression_rate: a parameter is compressed only if its factors have this many times
            fewer elements.
        warmup_steps: steps of plain all-reduce, before anything is compressed.
        seed: of the random factors with which training begins.

    Raises:
        ValueError: a rank below one; a negative rate, seed or number of steps, or one not whole.
    """

    family = "sparse or low-rank"
    dtypes = REAL_DTYPES
    depends_on_buckets = False
    gradients_agree = True

    rank: int = 2
    error_feedback: bool = True
    min_compression_rate: float = 2.0
    warmup_steps: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("rank", self.rank, least=1)
        check_whole("seed", self.seed, least=0)
        if not self.min_compression_rate >= 0:
            raise ValueError(
                f"min_compression_rate must be at least 0, got {self.min_compression_rate}"
            )
        check_whole("warmup_steps", self.warmup_steps, least=0)
        if not self.error_feedback:
            warnings.warn(
                f"rank {self.rank} drops the rest of every gradient for good without error "
                "feedback, and training may not converge (arXiv 1905.13727, section 3); set "
                "error_feedback=true",
                stacklevel=3,
            )

    @property
    def num_early_steps(self) -> int:
        """The number of warm-up steps, which all-reduce gradients uncompressed."""
        return self.warmup_steps

    @property
    def keeps_unsent(self) -> bool:
        """With error feedback."""
        return self.error_feedback

    def check_shards(self) -> None:
        """Raise `ValueError`: a shard is some rows of a matrix."""
        raise ValueError(
            "PowerSGD factorizes whole gradient matrices, of which each process holds some rows "
            "here: choose an algorithm that treats every element by itself, such as ByteGrad"
        )

    def init(self, context: Context) -> list[Factors]:
        """No residual, and random Qs, the same on every worker."""
        levels(context.communicator, self.hierarchical)  # raises
        generator = torch.Generator().manual_seed(self.seed)
        num_held = len(context.communicator.ranks)
        return [self._factors(bucket, num_held, generator) for bucket in context.buckets]

    def move_state(self, context: Context, move: Move) -> list[Factors]:
        """Residuals in other buckets, and the factors of each parameter with it."""
        states: list[Factors] = context.state
        q_of = {}
        for bucket, state in zip(move.old, states, strict=True):
            q_of |= dict(zip(self._compressed(bucket), state.q, strict=True))
        residuals: list[Tensor | None] = [None] * len(move.new)
        if self.error_feedback:
            kept = [state.residual for state in states if state.residual is not None]
            residuals = [*move.carry(kept, padded=False)]
        return [
            Factors(residual=residual, q=[q_of[p] for p in self._compressed(bucket)])
            for bucket, residual in zip(move.new, residuals, strict=True)
        ]

    def on_bucket_ready(self, context: Context, bucket: Bucket) -> None:
        """Replace the bucket's gradients by the product of their averaged factors."""
        if context.step < self.warmup_steps:
            all_reduce_mean_(bucket.gradients, context.communicator, self.hierarchical)
            return
        state: Factors = context.state[bucket.index]
        gradients_wn = bucket.gradients[:, : bucket.numel]
        if state.residual is not None:
            gradients_wn.copy_(state.residual.add_(gradients_wn))
        matrices, others = self._split(gradients_wn, bucket, len(context.communicator.ranks))
        # Cast: a bucket may be narrower than its factors, for which QR has no 16-bit form.
        left = [matrix @ q.to(matrix) for matrix, q in zip(matrices, state.q, strict=True)]
        means = self._mean([*left, *others], context)
        for other, mean in zip(others, means[len(left) :], strict=True):
            other.copy_(mean)
        if matrices:
            ps = [torch.linalg.qr(mean.to(_factor_dtype(mean))).Q for mean in means[: len(left)]]
            right = [m.mT @ p.to(m) for m, p in zip(matrices, ps, strict=True)]
            means = self._mean(right, context)
            for m, p, q, mean in zip(matrices, ps, state.q, means, strict=True):
                new_q = mean.to(q)
                m.copy_(p @ new_q.mT)
                # Else M Q is as large as the square of a gradient, which fp16 does not reach.
                new_q = torch.nn.functional.normalize(new_q, dim=1)
                q.copy_(torch.where(new_q.isfinite().all(), new_q, q))
        if state.residual is not None:
            self._keep(state.residual.sub_(gradients_wn), bucket, context)

    def _keep(self, residual: Tensor, bucket: Bucket, context: Context) -> None:
        """Of what gradients differ by from their means, all that factors have left out: parameters
        that travel as they are leave out nothing, and their differences would add up.
        """
        for other in self._split(residual, bucket, len(context.communicator.ranks))[1]:
            other.zero_()
        forget_overflow_(residual)

    def _factors(self, bucket: Bucket, num_held: int, generator: torch.Generator) -> Factors:
        gradients_wn = bucket.gradients[:, : bucket.numel]
        matrices, _ = self._split(gradients_wn, bucket, num_held)
        dtype = _factor_dtype(gradients_wn)
        return Factors(
            residual=torch.zeros_like(gradients_wn, dtype=dtype) if self.error_feedback else None,
            q=[
                _drawn(generator, 1, m, min(n, m, self.rank)).to(gradients_wn.device, dtype)
                for n, m in (matrix.shape[1:] for matrix in matrices)
            ],
        )

    def _split(
        self, gradients_wn: Tensor, bucket: Bucket, num_held: int
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Views: the parameters to compress `[w, n, m]`, and the others `[w, numel]`."""
        matrices, others = [], []
        for parameter, start in zip(bucket.parameters, bucket.starts, strict=True):
            shape = _shape_of_one(parameter, num_held)
            x_wn = gradients_wn[:, start : start + shape.numel()]
            if self._pays(shape):
                matrices.append(x_wn.unflatten(1, (shape[0], -1)))
            else:
                others.append(x_wn)
        return matrices, others

    def _compressed(self, bucket: Bucket) -> list[nn.Parameter]:
        """One worker's parameters that travel as factors."""
        return [p for p in bucket.parameters if self._pays(_shape_of_one(p, num_held=1))]

    def _mean(self, parts: Sequence[Tensor], context: Context) -> list[Tensor]:
        """Means `[1, ...]` over all workers of `parts[w, ...]`, in one message."""
        message_wk = torch.cat([part.flatten(1) for part in parts], dim=1)
        all_reduce_mean_(message_wk, context.communicator, self.hierarchical)
        flat = message_wk[:1].split([part[0].numel() for part in parts], dim=1)
        return [x.view(1, *part.shape[1:]) for x, part in zip(flat, parts, strict=True)]

    def _pays(self, shape: torch.Size) -> bool:
        if len(shape) < 2:
            return False
        n, m = shape[0], math.prod(shape[1:])
        sent = (n + m) * min(n, m, self.rank)
        return sent * self.min_compression_rate < n * m


def _drawn(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def _factor_dtype(x: Tensor) -> torch.dtype:
    """The type of `x`, but float32 at least."""
    return torch.promote_types(x.dtype, torch.float32)


def _shape_of_one(parameter: Tensor, num_held: int) -> torch.Size:
    """The shape that one worker's part of `parameter` has as a matrix.

    Without ones in front, which would make it a single row: a stacked model of one worker has one.
    """
    shape = parameter.shape[1:] if num_held > 1 else parameter.shape
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return shape
