"""What holds for all tests."""

import gc
import os
import signal
from functools import cache

import pytest
import torch
from hypothesis import settings

from experiments.plan.late_compiler import put_off_compiler

# Test processes share the cores: a pool of threads in each would stand in the others' way.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("relaxlab", deadline=None)  # a busy machine is not a failure
settings.load_profile("relaxlab")

# Few tests compile, and they find the compiler all the same.
put_off_compiler()

# What a shell starts in the background ignores Ctrl-C, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Thousands of tests are collected, and none is garbage.
gc.disable()


def pytest_collection_finish() -> None:
    """What is there by now stays to the end: nobody needs to look through it again and again."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test over a network says why it is skipped, where namespaces are forbidden."""
    if item.get_closest_marker("root") is not None and (reason := why_no_network()):
        pytest.skip(reason)


@cache
def why_no_network() -> str:
    """Empty where networks can be made."""
    from netsim.conditions.condition import NetworkCondition
    from netsim.errors import NamespaceError
    from netsim.links.namespaces import check_permitted

    try:
        check_permitted(NetworkCondition())
    except NamespaceError as error:
        return str(error)
    return ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest begin first: none of them is left alone at the end, on one core.

    Without a GPU one case of each test that needs one is enough to say so.
    """
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if not torch.cuda.is_available():
        told: set[str] = set()
        further = {item for item in items if is_further_on_gpu(item, told)}
        config.hook.pytest_deselected(items=list(further))
        items[:] = [item for item in items if item not in further]


def is_further_on_gpu(item: pytest.Item, told: set[str]) -> bool:
    """Whether the test needs a GPU, and an earlier case of it is in `told`."""
    if item.get_closest_marker("gpu") is None:
        return False
    test = item.nodeid.partition("[")[0]
    is_told = test in told
    told.add(test)
    return is_told
