"""Gradient all-reduce: nothing is relaxed; the baseline that every relaxation is compared with.

    g <- mean_j g_j             per bucket, while backward computes
    x <- optimizer(x, g)

Paper: Li et al., "PyTorch Distributed", arXiv 2006.15704 (bucketing and overlap). Differs from
the paper: BatchNorm buffers are averaged when a model is evaluated or saved, not broadcast at
every forward (a mean of moving averages is the moving average of the means).
"""

from dataclasses import dataclass

from bagua_algos.algorithm import Algorithm, Context
from bagua_algos.bucket import Bucket


@dataclass(frozen=True, kw_only=True)
class AllReduce(Algorithm):
    """Centralized, full precision, synchronous (BAGUA's C_FP_S)."""

    def on_bucket_ready(self, context: Context, bucket: Bucket) -> None:
        """Average the bucket's gradients."""
        context.communicator.all_reduce_mean_(bucket.gradients)
