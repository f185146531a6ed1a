"""Memory that tensors free, kept for those of the next step."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -3, -4, -8
"""Parameters of mallopt(3)."""
_MB = 1 << 20


@contextmanager
def kept_memory() -> Iterator[None]:
    """Within it, what this process frees stays its own; at its end the kernel gets it back.

    glibc returns blocks over 32 MB at once, and the kernel fills their pages with zeros whenever
    they are asked for again: with 128 stacked workers that took longer than their training. Where
    malloc is not glibc's, nothing changes.

    PyTorch's blocks are aligned to 64 bytes, for which glibc cuts a lead off each. While its
    thread's cache takes leads, 7 of a size, a freed block cannot grow back to what it was cut from,
    and the next equal one is cut from memory not used before: the first 8 or so of a size.

    Threads that start within share the memory of all: what is a thread's own, glibc returns to the
    kernel whatever the limits are. That stays so for threads that start afterwards.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallopt"):
        yield
        return
    libc.mallopt(_MMAP_MAX, 0)
    libc.mallopt(_TRIM_THRESHOLD, -1)  # never
    libc.mallopt(_ARENA_MAX, 1)
    try:
        yield
    finally:
        # glibc's own, where it had come to by itself: a threshold that is set does not move.
        libc.mallopt(_MMAP_MAX, 65_536)
        libc.mallopt(_MMAP_THRESHOLD, 32 * _MB)
        libc.mallopt(_TRIM_THRESHOLD, 64 * _MB)
        libc.malloc_trim(0)
