"""Simulated steps without their values: the time of a known run on another network.

What an algorithm does at each step does not depend on how long it takes, unless it
`depends_on_timing`: then only a simulation with values tells.
"""

from collections.abc import Sequence

from experiments.plan.plan import Plan
from experiments.simulated.profile import Profile
from experiments.simulated.simulate import make_timeline
from netsim.timeline.timeline import TimelineJob


def step_ends_s(
    plan: Plan,
    profile: Profile,
    script: Sequence[Sequence[TimelineJob]],
    net_backend: str | None = None,
) -> list[float]:
    """When the slowest of `plan`'s workers has done each step of `script`, in seconds.

    `net_backend`: see `make_timeline`.
    """
    timeline = make_timeline(plan, profile, net_backend)
    ends_s = []
    for jobs in script:
        timeline.replay(jobs)
        ends_s.append(float(timeline.time_s.max()))
    return ends_s
