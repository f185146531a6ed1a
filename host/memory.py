"""A host that runs out of memory: how to know, and what to do."""

import errno
import os
import resource
from pathlib import Path

ADVICE = "memory is full: take fewer workers, a smaller model or a smaller batch_size"

_COUNTS = Path("/proc/vmstat")


def num_oom_kills() -> int:
    """Processes that the kernel has killed for want of memory since it began; 0: not known."""
    try:
        counts = dict(line.split() for line in _COUNTS.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(counts.get("oom_kill", 0))


def is_lack_of_memory(error: BaseException) -> bool:
    """Whether it is Python's, torch's or the system's word that there is none left."""
    words = (
        "can't allocate memory",
        "Cannot allocate memory",
        "CUDA out of memory",
        "std::bad_alloc",
    )
    if isinstance(error, MemoryError) or any(word in str(error) for word in words):
        return True
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    where_limited = (  # a stack and a library's code are memory, too
        "can't start new thread",
        "can't spawn worker thread",
        "failed to map segment from shared object",
    )
    is_thread_of_cpp = type(error) is RuntimeError and str(error) == os.strerror(errno.EAGAIN)
    is_told = is_thread_of_cpp or any(word in str(error) for word in where_limited)
    return is_limited and is_told
