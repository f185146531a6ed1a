"""Rehearsals for simulated runs whose profile nobody looks at."""

from collections.abc import Callable

from experiments.plan.plan import Plan
from experiments.simulated.profile import Profile
from experiments.simulated.rehearsal import rehearse
from experiments.tasks.base import TaskData


def rehearse_shortly(
    plan: Plan, data: TaskData, *, sharing: int, seconds: float, tell: Callable[[], None]
) -> Profile:
    """In place of `experiments.simulated.simulate.rehearse`: ten steps, however long they take,
    where `seconds` would be half a second and more.
    """
    return rehearse(plan, data, sharing=sharing, num_steps=10, seconds=0, tell=tell)
