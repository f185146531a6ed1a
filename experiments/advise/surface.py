"""The first algorithm to the accuracy, over rate and delay, and the lines where it changes."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from experiments.advise.axes import Array, Axes
from experiments.advise.candidates import Candidate, Field, check_target
from experiments.advise.grid import Grid, spread_out
from experiments.advise.rank import tie_rule
from experiments.plan.plan import Plan
from host.errors import UserError
from host.words import counted
from netsim.conditions.condition import NetworkCondition


def compute(candidates: Sequence[Candidate], axes: Axes, num_coarse: int) -> Grid:
    """The times of all at every point; of those that depend on timing, `num_coarse` points along
    each axis are simulated and the others interpolated.
    """
    times_s, simulated_at = {}, {}
    for candidate in candidates:
        own = axes.coarse(num_coarse) if candidate.depends_on_timing else axes
        times = _times(candidate, own)
        if times[0].size < len(axes.rates_mbit) * len(axes.delays_ms):
            simulated_at[candidate.algo] = times[0].size
            times = spread_out(times, *own, everywhere=axes)
        times_s[candidate.algo] = times
    return Grid(
        rates_mbit=axes.rates_mbit,
        delays_ms=axes.delays_ms,
        times_s=times_s,
        simulated_at=simulated_at,
    )


def _times(candidate: Candidate, axes: Axes) -> Array:
    """Times to accuracy `[s, r, d]`."""
    base = candidate.plans[0].net
    times_srd = np.empty((len(candidate.plans), len(axes.rates_mbit), len(axes.delays_ms)))
    for i, rate in enumerate(axes.rates_mbit):
        for j, delay in enumerate(axes.delays_ms):
            outcomes = candidate.outcomes(_at(base, rate, delay))
            times_srd[:, i, j] = [outcome.time_to_accuracy_s for outcome in outcomes]
    return times_srd


def sentences(grid: Grid, field: Field) -> list[str]:
    """What the surface shows, and how far it can be trusted."""
    plan = field.candidates[0].plans[0]
    num_points = grid.best_s.size
    winners = grid.winners()
    if not winners:
        return [
            f"Simulated: no algorithm reaches {plan.target.value:g} within {plan.max_steps} "
            f"steps anywhere: raise max_steps or {plan.target.easier}."
        ]
    num_ties = sum(bool(grid.ties(*point)) for point in np.ndindex(grid.best_s.shape))
    said = ", ".join(f"{algo} at {count}" for algo, count in winners.most_common())
    missed = [algo for algo, times in grid.medians_s.items() if np.isinf(times).all()]
    return [
        f"Simulated: of {counted(len(grid.times_s), 'algorithm')} at {num_points} points, "
        f"first to {plan.target.value:g} is {said}; at {num_ties} the first ties with another.",
        *(_along(grid, delay) for delay in range(len(grid.delays_ms))),
        *([f"Missed everywhere: {', '.join(missed)}."] if missed else []),
        tie_rule(),
        *(
            f"The values of {algo} depend on timing: trained at {num} points, interpolated between."
            for algo, num in grid.simulated_at.items()
        ),
        *field.remarks(),
    ]


def _along(grid: Grid, delay: int) -> str:
    """Such as "At 1 ms: power_sgd, from 810 Mbit/s allreduce."."""
    crossings = grid.crossings(delay)
    start = crossings[0].before if crossings else grid.first(0, delay)
    changes = [f"from {_two_digits(c.rate_mbit)} Mbit/s {_first(c.after)}" for c in crossings]
    return f"At {grid.delays_ms[delay]:.3g} ms: {', '.join([_first(start), *changes])}."


def _first(algo: str | None) -> str:
    return "none reaches the target" if algo is None else algo


def _two_digits(rate_mbit: float) -> str:
    """Such as "0.41", "41" or "4100": a line is not known better."""
    return np.format_float_positional(rate_mbit, 2, fractional=False, trim="-")


def check_grid(plans: Sequence[Plan], axes: Axes) -> None:
    """Raise `UserError` without a target, for a network whose links do not all have the rate and
    delay of a point of `axes`, or for a point that no network can be at.
    """
    plan = plans[0]
    check_target(plan)
    name = f"net={plan.names['net']}"
    if plan.net.varies:
        raise UserError(
            f"{name} changes over time, so it has no one rate and delay: choose a constant "
            "network, such as net=slow_tcp"
        )
    for rate, delay in product(axes.rates_mbit[[0, -1]], axes.delays_ms[[0, -1]]):
        try:
            net = _at(plan.net, rate, delay)
        except ValueError as error:
            raise UserError(f"a point of the grid: {error}") from error
        if not _is_even(net, plan.workers):
            raise UserError(
                f"{name} has links with a rate or delay of their own, which no point of the grid "
                "changes: choose a network whose links are alike, such as net=slow_tcp"
            )


def _at(net: NetworkCondition, rate: float, delay: float) -> NetworkCondition:
    return replace(net, rate_mbit=float(rate), delay_ms=float(delay))


def _is_even(net: NetworkCondition, num_workers: int) -> bool:
    """Whether all links have the rate and delay of `net`, and those of nodes add nothing."""
    ranks = range(min(num_workers, net.max_rank_named + 2))  # the last one has nothing of its own
    up, down = ([net.link(rank, way) for rank in ranks] for way in ("up", "down"))
    nodes = [net.node_link("up"), net.node_link("down")]
    return (
        {(link.rate_mbit, link.delay_ms) for link in up} == {(net.rate_mbit, net.delay_ms)}
        and {(link.rate_mbit, link.delay_ms) for link in down} == {(net.rate_mbit, 0)}
        and {(link.rate_mbit, link.delay_ms) for link in nodes} == {(None, 0)}
    )
