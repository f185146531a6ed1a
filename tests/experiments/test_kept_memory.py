import gc
import resource

import torch

from experiments.kept_memory import kept_memory

NUM_BYTES = 256 << 20
ROUNDS = 10
"""What is freed lacks some bytes of what is asked for next, for the alignment, until two such
blocks have become one: mostly after at most 4 rounds.
"""


def pages_asked_for() -> int:
    """By a tensor that is filled, and freed."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(NUM_BYTES, dtype=torch.uint8).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_what_is_freed_is_there_for_later_ones_and_given_back_at_the_end():
    gc.collect()
    outside = resident_bytes()
    with kept_memory():
        asked_for = [pages_asked_for() for _ in range(ROUNDS)]
        inside = resident_bytes()
    first, *later = asked_for
    assert min(later) < first / 50, asked_for  # without: all as many as the first
    assert inside > outside + NUM_BYTES / 2
    assert resident_bytes() < outside + NUM_BYTES / 2
    assert pages_asked_for() > first / 2  # as it was
