import gc
import resource

import torch

from experiments.kept_memory import kept_memory

NUM_BYTES = 256 << 20


def pages_asked_for() -> int:
    """By a tensor that is filled, and freed."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(NUM_BYTES, dtype=torch.uint8).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_what_is_freed_is_there_for_the_next_and_given_back_at_the_end():
    gc.collect()
    outside = resident_bytes()
    with kept_memory():
        first, second = pages_asked_for(), pages_asked_for()
        inside = resident_bytes()
    assert second < first / 50, (first, second)
    assert inside > outside + NUM_BYTES / 2
    assert resident_bytes() < outside + NUM_BYTES / 2
    assert pages_asked_for() > first / 2  # as it was
