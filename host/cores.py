"""How many cores a program may compute on."""

import os

THREADS = "OMP_NUM_THREADS"


def usable_cores() -> int:
    """Those that this process may run on, and no more than OMP_NUM_THREADS, if it is set: whoever
    starts several processes side by side shares out the cores by it, as joblib and Ray do.
    """
    own = len(os.sched_getaffinity(0))
    try:
        asked = int(os.environ.get(THREADS, "").split(",")[0])
    except ValueError:
        return own
    return max(1, min(own, asked))
