"""What holds for all tests."""

import gc
import os
import signal

import pytest
from hypothesis import settings

# Two test processes share the cores: a pool of threads in each would only stand in the other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("relaxlab", deadline=None)  # a busy machine is not a failure
settings.load_profile("relaxlab")

# What a shell starts in the background ignores Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Thousands of tests are collected, and none is garbage.
gc.disable()


def pytest_collection_finish() -> None:
    """What is there by now stays to the end: nobody needs to look through it again and again."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest begin first: none of them is left alone at the end, on one core."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
