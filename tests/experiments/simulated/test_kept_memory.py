import gc
import resource
import subprocess
import sys

import torch

from experiments.simulated.kept_memory import kept_memory

NUM_BYTES = 256 << 20
FIRST_ROUNDS, LATER_ROUNDS = 12, 4
"""A freed block serves an equal one once glibc's cache is full of leads: see kept_memory."""


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
        first, *_ = asked_for = [pages_asked_for() for _ in range(FIRST_ROUNDS)]
        later = [pages_asked_for() for _ in range(LATER_ROUNDS)]
        inside = resident_bytes()
    assert max(later) < first / 50, (asked_for, later)  # without: all as many as the first
    assert inside > outside + NUM_BYTES / 2
    assert resident_bytes() < outside + NUM_BYTES / 2
    assert pages_asked_for() > first / 2  # as it was


OF_A_THREAD = """
import resource, threading
from experiments.simulated.kept_memory import kept_memory

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [bytearray(40 << 20) for _ in range(3)]
    del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

with kept_memory():
    thread = threading.Thread(target=lambda: print(*[pages() for _ in range(12)]))
    thread.start()
    thread.join()
"""


def test_so_it_is_for_threads_that_start_within():
    told = subprocess.run([sys.executable, "-c", OF_A_THREAD], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    first, *others = map(int, told.stdout.split())
    assert max(others[-4:]) < first / 50, told.stdout
