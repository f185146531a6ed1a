"""How far a worker's process is ahead of its GPU.

The process enqueues steps; the GPU computes them and waits for the other workers. With two steps
in its queue a GPU is never idle for want of work. It is asked, never waited for by CUDA's own
calls, which have no time limit: so a GPU that hangs because another worker is silent is noticed,
and said.
"""

import time
from collections import deque
from collections.abc import Callable

import torch

from bagua_algos.communication.communicator import CommunicationError

MOST_AHEAD = 2
"""Steps in the GPU's queue, beyond which the process waits."""

_ASK_EVERY_S = 1e-4


class StepsAhead:
    """The steps that are enqueued and not known to be done.

    Args:
        limit_s: the longest that the GPU may take for one of them.
        record: an event on the stream that computes; by default the current one's.
    """

    def __init__(self, limit_s: float, record: Callable[[], torch.Event] | None = None) -> None:
        self._limit_s = limit_s
        self._record = record or _record_event
        self._ends: deque[torch.Event] = deque()

    def add(self) -> None:
        """One more step is enqueued; waits while there are more than `MOST_AHEAD`.

        Raises `CommunicationError` where the GPU does not come to the end of one in time.
        """
        self._ends.append(self._record())
        self._await_all_but(MOST_AHEAD)

    def finish(self) -> None:
        """Wait until all that is enqueued is done; raises as `add`."""
        self._ends.append(self._record())
        self._await_all_but(0)

    def _await_all_but(self, num_left: int) -> None:
        while len(self._ends) > num_left:
            deadline_s = time.monotonic() + self._limit_s
            while not self._ends[0].query():
                if time.monotonic() > deadline_s:
                    raise CommunicationError(
                        f"the GPU has not finished a step within {self._limit_s:g} s: it waits for "
                        "a worker that is silent, or the network is too slow for cluster.timeout_s"
                    )
                time.sleep(_ASK_EVERY_S)
            self._ends.popleft()


def _record_event() -> torch.Event:
    return torch.cuda.current_stream().record_event()
