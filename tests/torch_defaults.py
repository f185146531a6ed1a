"""What scripts change that torch makes by default."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

OTHER_DTYPES = [torch.float64, torch.bfloat16, torch.float16]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """New numbers have this type, until the end of the block."""
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
