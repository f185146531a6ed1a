"""Real runs of what was predicted, on this host."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from experiments.advise.candidates import Candidate
from experiments.plan.plan import MEASURED, Backend, Plan
from experiments.real.failures import RunFailedError
from experiments.real.local import launch
from experiments.tasks.base import TaskData
from experiments.training.metrics import MetricsRow, time_to_target
from experiments.training.result import DivergedError
from host.commands import say
from host.errors import UserError
from host.remaining import Work
from netsim.conditions.condition import NetworkCondition
from netsim.errors import NamespaceError
from netsim.links.namespaces import check_permitted

REAL_RUN_S = 30.0
"""What one may take, before the first of them tells more."""

ATTEMPTS = 2
"""A busy host can spoil a run's network; that says nothing of the algorithm."""


def check_launchable(plans: Sequence[Plan], networks: Sequence[NetworkCondition]) -> None:
    """Raise `UserError` where real workers cannot run these plans here over these networks."""
    device = plans[0].backend.device
    if device != "cpu":
        raise UserError(
            f"--verify runs workers on CPUs, and times are predicted for device={device}: leave "
            "out --verify, or take device=cpu"
        )
    try:
        for plan, network in product(plans, networks):
            _real(plan, network)
    except ValueError as error:
        raise UserError(f"--verify runs real workers: {error}") from error
    try:
        for network in networks:
            check_permitted(network, plans[0].workers)
    except (NamespaceError, ValueError) as error:
        raise UserError(str(error)) from error


def measured_times_s(candidate: Candidate, net: NetworkCondition, work: Work) -> list[float]:
    """The times to accuracy of real runs by gloo, one for each seed, each a piece of `work`; inf:
    missed or diverged.

    Raises `RunFailedError` where a run fails twice.
    """
    plans = [_real(plan, net) for plan in candidate.plans]
    return [_measured_s(plan, candidate.data, work) for plan in plans]


def _real(plan: Plan, net: NetworkCondition) -> Plan:
    cluster = replace(plan.cluster, stacking=MEASURED)  # real ones are each a process of its own
    backend = Backend(process_group="gloo", device="cpu")
    return replace(plan, net=net, backend=backend, cluster=cluster)


def _measured_s(plan: Plan, data: TaskData, work: Work) -> float:
    started_s = time.monotonic()
    rows = _rows(plan, data)
    reached_s = time_to_target(rows, plan.target)
    took_s = time.monotonic() - started_s
    what = "missed" if reached_s is None else f"reached after {reached_s:.2f} s"
    work.done(line=f"ran {plan.names['algo']}, seed {plan.seed}, for real: {what} ({took_s:.0f} s)")
    return math.inf if reached_s is None else reached_s


def _rows(plan: Plan, data: TaskData) -> list[MetricsRow]:
    """All rows of a run; none if it diverged."""
    for attempt in range(1, ATTEMPTS + 1):
        rows: list[MetricsRow] = []
        try:
            launch(plan, data, lambda network: None, rows.append)
            return rows
        except DivergedError:
            return []
        except RunFailedError as error:
            if attempt == ATTEMPTS:
                raise
            say(f"{plan.names['algo']}, seed {plan.seed}, failed ({error}): once more")
    raise AssertionError("the last attempt returns or raises")
