"""The call stack of a thread, for the few facts that torch does not report."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def running(function: Callable[..., Any]) -> FrameType | None:
    """The innermost call of `function`, a plain Python one, that this thread is within."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame
