"""How many cores a program may compute on."""

import os

THREADS = "OMP_NUM_THREADS"


def usable_cores() -> int:
    """Those that this process may run on, and no more than OMP_NUM_THREADS, if it is set: programs
    that start several processes side by side share out the cores by it, such as joblib and Ray.
    """
    own = len(os.sched_getaffinity(0))
    try:
        asked = int(os.environ.get(THREADS, "").split(",")[0])
    except ValueError:
        return own
    return max(1, min(own, asked))
