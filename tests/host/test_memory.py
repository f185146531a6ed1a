import resource

import pytest

from host.memory import is_lack_of_memory


@pytest.mark.parametrize(
    ("error", "is_limited", "expected"),
    [
        (MemoryError(), False, True),
        (RuntimeError("std::bad_alloc"), False, True),
        (RuntimeError("can't start new thread"), True, True),
        (RuntimeError("can't start new thread"), False, False),  # too many threads, maybe
        (BaseException("OS can't spawn worker thread: (os error 11)"), True, True),  # Rust's panic
        (ImportError("a.so: failed to map segment from shared object"), True, True),
        (RuntimeError("Resource temporarily unavailable"), True, True),  # a thread of C++
        (RuntimeError("Resource temporarily unavailable"), False, False),
        (BlockingIOError(11, "Resource temporarily unavailable"), True, False),  # of a socket
        (ImportError("a.so: failed to map segment from shared object"), False, False),  # noexec
        (RuntimeError("something else"), True, False),
    ],
)
def test_a_thread_that_cannot_start_lacks_memory_where_that_is_limited(
    error, is_limited, expected, monkeypatch
):
    limit = 1 << 30 if is_limited else resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
    assert is_lack_of_memory(error) == expected
