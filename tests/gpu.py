"""What tests on a GPU have in common."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def without_host_waits() -> Iterator[None]:
    """Within, an operation of torch's in which the host waits for the GPU is a `RuntimeError`."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype feature")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
