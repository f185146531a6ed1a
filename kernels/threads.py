"""Work shared out among as many threads as torch uses, by kernels that release the GIL.

Numba's own threads do not survive a fork. Each process makes the threads here when it first needs
them. The number of threads never changes what a kernel computes.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import torch

from kernels.jit import num_pieces

ELEMENTS_PER_THREAD = 1 << 17
"""Fewer are not worth waking a thread."""


def share(
    kernel: Callable[..., object], arguments: tuple[Any, ...], num_items: int, num_elements: int
) -> None:
    """Call `kernel(*arguments, first, last)` for ranges that cover 0 .. num_items, at the same
    time. `num_elements` counts the elements of all items.
    """
    num_threads = min(torch.get_num_threads(), num_elements // ELEMENTS_PER_THREAD, num_items)
    if num_threads <= 1:
        kernel(*arguments, 0, num_items)
        return
    ends = [num_items * i // num_threads for i in range(num_threads + 1)]
    *others, own = pairwise(ends)
    pool = _pool(torch.get_num_threads() - 1)  # one for all: it starts threads as they are needed
    futures = [pool.submit(kernel, *arguments, *part) for part in others]
    kernel(*arguments, *own)
    for future in futures:
        future.result()


def share_pieces(
    kernel: Callable[..., object], arguments: tuple[Any, ...], shape: tuple[int, ...]
) -> None:
    """`share` the pieces of chunks of this shape `[rows, n]` (`kernels.jit.place`)."""
    num_rows, n = shape
    share(kernel, arguments, num_rows * num_pieces(n), num_rows * n)


@cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(num_threads, thread_name_prefix="kernels")


os.register_at_fork(after_in_child=_pool.cache_clear)
