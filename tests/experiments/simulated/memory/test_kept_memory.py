import subprocess
import sys

BY_TENSORS = """
import resource
import torch
from experiments.simulated.memory.kept_memory import kept_memory

NUM_BYTES = 64 << 20
# glibc's cache is full of leads by then, 7 each of 16, 32, 48 and 64 bytes: see kept_memory
FIRST_ROUNDS, LATER_ROUNDS = 32, 4

def pages_asked_for():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(NUM_BYTES, dtype=torch.uint8).fill_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()

outside = resident_bytes()
with kept_memory():
    first, *_ = asked_for = [pages_asked_for() for _ in range(FIRST_ROUNDS)]
    later = [pages_asked_for() for _ in range(LATER_ROUNDS)]
    inside = resident_bytes()
assert max(later) < first / 50, (asked_for, later)  # without: all as many as the first
assert inside > outside + NUM_BYTES / 2, (outside, inside)
afterwards = resident_bytes()
assert afterwards < outside + NUM_BYTES / 2, (outside, afterwards)
assert pages_asked_for() > first / 2  # as it was
"""

BY_A_THREAD = """
import resource, threading
from experiments.simulated.memory.kept_memory import kept_memory

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


def in_its_own_process(script: str) -> str:
    """What it prints. This process's memory is others', too: they may have left room for it."""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    return told.stdout


def test_what_is_freed_is_there_for_later_ones_and_given_back_at_the_end():
    in_its_own_process(BY_TENSORS)


def test_so_it_is_for_threads_that_start_within():
    told = in_its_own_process(BY_A_THREAD)
    first, *others = map(int, told.split())
    assert max(others[-4:]) < first / 50, told
