"""Operations under way while links change.

What would take T over the links of a moment gets on by the share dt / T. What is through is
through, whatever links do then.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from host.errors import UserError
from netsim.timeline.cost import Cost
from netsim.timeline.cost_model import CostedOperation, CostModel
from netsim.timeline.link_table import Array
from netsim.timeline.tcp.windows import Windows

MAX_CHANGES = 100_000
"""Of the links, while one operation is under way."""


def finish(
    model: CostModel, operation: CostedOperation, windows: Windows, starts_s: Array
) -> tuple[Cost, Array, Array]:
    """The cost at the start, or when any of it first gets on, and when what starts then ends and is
    handed over, `[n]` each.

    Raises:
        UserError: if it never ends.
    """
    if not model.varies:
        table, _ = model.at(float(starts_s.min()))
        cost = model.cost(operation, table, windows)
        ends_s = starts_s + cost.seconds
        _check_ends(operation, starts_s, ends_s)
        return cost, ends_s, starts_s + cost.handover_s
    starts_s = np.array([starts_s, starts_s])
    cost, (ends_s, handed_over_s), _ = _through_s(
        model, operation, windows, starts_s, _ends_and_handovers
    )
    return cost, ends_s, handed_over_s


def busy_s(
    model: CostModel, operation: CostedOperation, windows: Windows, cost: Cost, begins_s: Array
) -> tuple[Array, float | Array]:
    """For how long an operation of this cost, at its start, occupies its links from then on, but
    for outages, and for how long these hold it up, `[l]` each.
    """
    links = cost.links
    if not model.varies:
        return cost.busy_s[links], 0.0

    def takes(cost: Cost) -> Array:
        is_stuck = _is_stuck(model, operation, cost)[links]
        return np.where(is_stuck, np.inf, cost.busy_s[links])

    _, ends_s, held_up_s = _through_s(model, operation, windows, begins_s, takes)
    return ends_s - begins_s - held_up_s, held_up_s


def _is_stuck(model: CostModel, operation: CostedOperation, cost: Cost) -> NDArray[np.bool_]:
    """`[links]`: whether all messages over a link wait for one that is down."""
    if operation.peers is None:
        return np.full(len(cost.busy_s), cost.seconds == np.inf)
    route = model.route(operation)
    waits = np.asarray(cost.seconds)[route.moves] == np.inf
    is_stuck = np.zeros(len(cost.busy_s), dtype=bool)
    is_stuck[route.crossed[:, waits]] = True
    is_stuck[route.crossed[:, ~waits]] = False
    return is_stuck


def _ends_and_handovers(cost: Cost) -> Array:
    return np.array([cost.seconds, cost.handover_s]).reshape(2, -1)


def _through_s(
    model: CostModel,
    operation: CostedOperation,
    windows: Windows,
    starts_s: Array,
    takes: Callable[[Cost], Array],
) -> tuple[Cost, Array, Array]:
    """The cost at the start, or when any of it first gets on, when parts of an operation that start
    then are through, and for how long they stood still until then; `takes` has what each of them
    takes at a cost.
    """
    table, until_s = model.at(float(starts_s.min()))
    first = cost = model.cost(operation, table, windows)
    takes_s = takes(cost)
    at_s, left, ends_s = starts_s, np.ones_like(starts_s), starts_s + takes_s
    held_up_s = np.zeros_like(starts_s)
    num_changes = 0
    while until_s < np.inf and not (is_through := ends_s <= until_s).all():
        num_changes += 1
        _check_gets_through(operation, num_changes, until_s)
        moved_s = np.where(is_through, 0, np.maximum(until_s - at_s, 0))
        held_up_s = held_up_s + np.where(np.isinf(takes_s), moved_s, 0)
        share = np.divide(moved_s, takes_s, out=np.zeros_like(left), where=moved_s > 0)
        left = np.where(is_through, 0, np.maximum(left - share, 0))
        at_s = np.maximum(at_s, np.minimum(ends_s, until_s))
        table, until_s = model.at(until_s)
        cost = model.cost(operation, table, windows)
        takes_s = takes(cost)
        if np.isinf(first.seconds).all():
            first = cost
        ends_s = at_s + np.multiply(left, takes_s, out=np.zeros_like(left), where=left > 0)
    _check_ends(operation, at_s, ends_s)
    return first, ends_s, held_up_s


def _check_gets_through(operation: CostedOperation, num_changes: int, at_s: float) -> None:
    if num_changes > MAX_CHANGES:
        raise UserError(
            f"{operation.name} does not get through: the links have changed {MAX_CHANGES:,} times "
            f"until {at_s:g} s, and those that it needs are too slow for that, or never up at "
            "once; give faults an end, other times or longer ones, or a trace fewer rows."
        )


def _check_ends(operation: CostedOperation, at_s: Array, ends_s: Array) -> None:
    if not np.isfinite(ends_s).all():
        raise UserError(
            f"{operation.name} never ends: a link that it needs is down for ever from "
            f"{at_s.max():g} s on; give the fault an end, or loss_pct less than 100."
        )
