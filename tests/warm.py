"""What a training imports late, which takes seconds. A process that is forked many times imports it
once, and calls `before_forks`.
"""

import gc

import torch._dynamo  # noqa: F401  (every optimizer of torch does)

import kernels.fp8.cpu
import kernels.minmax_uint8.cpu
import kernels.qsgd.cpu
import kernels.sign_scale.cpu  # noqa: F401


def before_forks() -> None:
    """A fork that ends looks for garbage; not in what it has inherited, which takes a second."""
    gc.collect()
    gc.freeze()
