"""Gradient all-reduce: nothing is relaxed; the baseline that every relaxation is compared with.

    g <- mean_j g_j             per bucket, while backward computes, in `wire`'s precision
    x <- optimizer(x, g)

Paper: Li et al., "PyTorch Distributed", arXiv 2006.15704 (bucketing and overlap). Differs from
the paper: BatchNorm buffers are averaged when a model is evaluated or saved, not broadcast at
every forward (a mean of moving averages is the moving average of the means). Differs from PyTorch's
bf16_compress_hook: the sum is divided, not the summands (in fp16 the summands are, as in its
fp16_compress_hook, since a sum beyond 65504 would be infinite).
"""

from dataclasses import dataclass

import torch

from bagua_algos.communication.hierarchy import levels
from bagua_algos.communication.primitives import all_reduce_mean_
from bagua_algos.compressors.cast import WIRE_DTYPES
from bagua_algos.compressors.compressor import REAL_DTYPES
from bagua_algos.engine.algorithm import Context, Hierarchical
from bagua_algos.engine.bucket import Bucket

SUMMABLE = ("bf16", "fp16")
"""Types in which a network can add gradients up."""


@dataclass(frozen=True, kw_only=True)
class AllReduce(Hierarchical):
    """Centralized, full precision, synchronous (BAGUA's C_FP_S).

    Args:
        wire: the type that gradients are cast to, and summed in: "bf16", "fp16", or None for their
            own.

    Raises:
        ValueError: another `wire`.
    """

    family = "all-reduce"
    depends_on_buckets = False
    gradients_agree = True

    wire: str | None = None

    def __post_init__(self) -> None:
        if self.wire is not None and self.wire not in SUMMABLE:
            raise ValueError(
                f"wire must be bf16, fp16 or None, got {self.wire!r}; fp8 cannot be summed: use "
                "CompressedAllReduce with Cast (algo=allreduce_fp8)"
            )

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """A wire's types are of real numbers."""
        return Hierarchical.dtypes if self.wire is None else REAL_DTYPES

    @property
    def only_averages(self) -> bool:
        """Whether it is flat."""
        return not self.hierarchical

    def init(self, context: Context) -> None:
        """Nothing; `ValueError` where it is hierarchical and nodes are not known."""
        levels(context.communicator, self.hierarchical)

    def on_bucket_ready(self, context: Context, bucket: Bucket) -> None:
        """Average the bucket's gradients."""
        if self.wire is None:
            all_reduce_mean_(bucket.gradients, context.communicator, self.hierarchical)
            return
        narrow_wn = bucket.gradients.to(WIRE_DTYPES[self.wire])
        all_reduce_mean_(narrow_wn, context.communicator, self.hierarchical)
        bucket.gradients.copy_(narrow_wn)
