"""Which threads kernels are shared out among."""

import threading

import pytest
import torch

from kernels import threads
from kernels.threads import ELEMENTS_PER_THREAD, share

MOST = 8


def test_parts_of_every_number_are_computed_by_the_same_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: MOST)
    threads._pool.cache_clear()
    used: set[threading.Thread] = set()
    for num_parts in range(2, MOST + 1):
        together, parts = threading.Barrier(num_parts), []

        def kernel(first: int, last: int, together=together, parts=parts) -> None:
            together.wait(timeout=30)
            parts.append((first, last))
            used.add(threading.current_thread())

        share(kernel, (), num_parts, num_parts * ELEMENTS_PER_THREAD)
        assert sorted(parts) == [(i, i + 1) for i in range(num_parts)]
    threads._pool.cache_clear()
    assert threading.current_thread() in used
    assert len(used) == MOST
