"""Links that several lanes share evenly: processor sharing, by formula.

Of k flows on one link, with w_i seconds of work left each, all get 1/k of it until the least is
through, then all others 1/(k - 1), and so on. So flow i is through after

    t_i = sum over j of min(w_i, w_j)

and a flow that joins with w seconds of work puts off flow i by min(w_i, w).
"""

import numpy as np

from netsim.timeline.link_table import Array


def shared(free_s: Array, lane: int, begins_s: Array, busy_s: Array) -> Array:
    """When each lane's bytes are off each link, once a lane puts more on.

    Args:
        free_s: when they would have been so, `[lanes, links]`.
        lane: that puts more on.
        begins_s: when, `[links]` or `[1]`; not before its own are off.
        busy_s: how much, in seconds that the link alone needs, `[links]`.

    Returns:
        `[lanes, links]`.
    """
    after_s = free_s.copy()
    after_s[lane] = begins_s + busy_s
    others = (row for row in range(len(free_s)) if row != lane)
    sharing = [row for row in others if (free_s[row] > begins_s).any()]
    if sharing:
        left_s = np.maximum(free_s[sharing] - begins_s, 0)
        put_off_s = np.minimum(work(left_s), busy_s)
        after_s[sharing] += put_off_s
        after_s[lane] += put_off_s.sum(0)
    return after_s


def work(left_s: Array) -> Array:
    """Seconds of work `[flows, links]` of flows that are through after `left_s`."""
    if len(left_s) == 1:
        return left_s
    order = np.argsort(left_s, axis=0)
    in_turn_s = np.take_along_axis(left_s, order, axis=0)
    num_sharing = np.arange(len(left_s), 0, -1)[:, None]
    work_in_turn_s = np.cumsum(np.diff(in_turn_s, axis=0, prepend=0) / num_sharing, axis=0)
    work_s = np.empty_like(left_s)
    np.put_along_axis(work_s, order, work_in_turn_s, axis=0)
    return work_s
