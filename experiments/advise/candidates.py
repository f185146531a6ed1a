"""The algorithms of a comparison: chosen, rehearsed, and trained once for every network."""

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import torch

from experiments.advise.choice import NOT_SIMULATED, NUM_REHEARSALS, Choice, composed
from experiments.plan.factory import make_plan
from experiments.plan.model_check import check_model
from experiments.plan.plan import Plan
from experiments.simulated.memory.fitting import fitting_at_once
from experiments.simulated.outcome import (
    SimulatedOutcome,
    outcome_on,
    outcome_there,
    record_training,
)
from experiments.simulated.profile import Profile
from experiments.simulated.rehearsal import NUM_TOLD, REHEARSED_S
from experiments.simulated.replay import RecordedTraining
from experiments.simulated.simulate import get_profile
from experiments.simulated.stacking import StackingChoice, choose_stacking
from experiments.tasks.base import TaskData
from host.commands import say
from host.cores import usable_cores
from host.errors import UserError
from host.forks.side_by_side import side_by_side
from host.processes import run_in_child
from host.remaining import Work
from host.words import counted
from netsim.conditions.condition import NetworkCondition

REHEARSING, TRAINING = "rehearsing", "training"
"""Parts of the work of a command that compares algorithms."""

REHEARSAL_S, TRAINING_S = 0.4, 5.0
"""What one of them may take on one core, as long as nothing tells more."""

BRIEFLY_S = 0.12
"""For how long an algorithm is rehearsed at a time, at least, where that is to be over soon. Fewer
steps, too, would spread no more, but SGP's are slower at the beginning.
"""

SETTLED = 1.03
"""An algorithm is not rehearsed again where the second fastest of its rehearsals has taken no more
than so many times as long as the fastest: another one would hardly be faster.
"""

TRAINED = 0.35
"""The part of its workers' own work that a simulated training may take: many are computed at once,
and it ends at its target.
"""

LIMIT_S = 600
"""Of measuring how workers are computed: a hung machine shall not hang the command."""


NO_FOLDER = Path(os.devnull)
"""Of plans that write nothing: whatever would be written there is refused by the kernel."""


def training_s(plan: Plan, profile: Profile) -> float:
    """What one training of `plan` may take on one core."""
    return TRAINED * plan.max_steps * plan.workers * profile.work_s


class Candidate:
    """One algorithm, by a plan for each seed. Trained when first asked for, and not again where
    timing changes nothing.

    Args:
        plans: alike but for their seeds.
        data: their examples.
        profile: of its work.
        stackings: how the workers of the model that all candidates share are computed, by the
            number of threads; what is measured is added.
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        data: TaskData,
        profile: Profile,
        stackings: dict[int, StackingChoice],
    ) -> None:
        self.plans = plans
        self.data = data
        self.profile = profile
        self.stackings = stackings
        self.trainings: list[RecordedTraining] = []

    @property
    def algo(self) -> str:
        """The name of its configuration."""
        return self.plans[0].names["algo"]

    @property
    def training_s(self) -> float:
        """What one training may take on one core."""
        return training_s(self.plans[0], self.profile)

    @property
    def depends_on_timing(self) -> bool:
        """Whether it is trained again for every network."""
        return self.plans[0].algorithm.depends_on_timing

    def outcomes(self, net: NetworkCondition) -> list[SimulatedOutcome]:
        """One for each seed, on a network.

        Raises `UserError` as `check_network` does.
        """
        return outcomes_of([self], net)[0]


def outcomes_of(
    candidates: Sequence[Candidate],
    net: NetworkCondition,
    work: Work | None = None,
    part: str = TRAINING,
) -> list[list[SimulatedOutcome]]:
    """Of each candidate one for each seed, on a network. What is to be trained for it is trained
    side by side, on all cores, as a `part` of `work`.

    Raises `UserError` as `check_network` does.
    """
    for candidate in candidates:
        check_network(candidate.plans[0], net)
    for candidate in candidates:
        if candidate.depends_on_timing:
            candidate.trainings = []
    untrained = [candidate for candidate in candidates if not candidate.trainings]
    if untrained:
        _train_all(untrained, net, work, part)
    return [
        [
            _outcome(candidate, replace(plan, net=net), training)
            for plan, training in zip(candidate.plans, candidate.trainings, strict=True)
        ]
        for candidate in candidates
    ]


def _train_all(
    candidates: Sequence[Candidate], net: NetworkCondition, work: Work | None, part: str
) -> None:
    """Side by side, one on each core where there are as many. One model, so one way to compute its
    workers, measured once.
    """
    first, num_trainings = candidates[0], sum(len(c.plans) for c in candidates)
    fitting = fitting_at_once([candidate.plans[0] for candidate in candidates], first.data)
    at_once = min(num_trainings, usable_cores(), fitting)
    stacking = _stacking(first, at_once)
    jobs = [
        partial(_train, replace(plan, net=net), candidate, stacking)
        for candidate in candidates
        for plan in candidate.plans
    ]
    sizes = [candidate.training_s for candidate in candidates for _ in candidate.plans]
    if work is not None:
        work.begin(part, sizes, at_once)

    def tell(job: _Trained) -> None:
        if work is None:
            say(job.said)
        else:
            work.done(job.size, job.said)

    trained = iter(side_by_side(jobs, at_once, tell, sizes))
    for candidate in candidates:
        candidate.trainings = [next(trained).training for _ in candidate.plans]


def _outcome(candidate: Candidate, plan: Plan, training: RecordedTraining) -> SimulatedOutcome:
    if candidate.depends_on_timing:
        return outcome_there(plan, training)
    return outcome_on(plan, candidate.profile, training)


class _Trained(NamedTuple):
    training: RecordedTraining
    said: str
    size: float


def _train(plan: Plan, candidate: Candidate, stacking: StackingChoice) -> _Trained:
    started_s = time.monotonic()
    torch.set_num_threads(usable_cores())
    training = record_training(plan, candidate.data, candidate.profile, stacking)
    scores = [row.value for row in training.evaluations if row.value is not None]
    best = reduce(plan.target.better, scores, math.nan)
    where = "for every network"
    if candidate.depends_on_timing:
        where = f"at {plan.net.rate_mbit or 'unlimited'} Mbit/s, {plan.net.delay_ms:g} ms"
    took_s = time.monotonic() - started_s
    said = (
        f"trained {candidate.algo}, seed {plan.seed}, {where}: {plan.target.metric} {best:.3f} "
        f"({took_s:.0f} s)"
    )
    return _Trained(training, said, candidate.training_s)


def check_network(plan: Plan, net: NetworkCondition) -> None:
    """Raise `UserError` where the network `net` names a worker that `plan` has not, or `plan`
    averages within nodes, and `net` has others, or none.
    """
    try:
        there = replace(plan, net=net)
    except ValueError as error:
        raise UserError(str(error)) from error
    if plan.algorithm.needs_nodes and there.nodes != plan.nodes:
        raise UserError(
            f"{plan.names['algo']} averages within nodes: compare networks with the same nodes "
            "only, or take algo.hierarchical=false"
        )


def check_target(plan: Plan) -> None:
    """Raise `UserError` where there is no target, so that no times to it can be compared."""
    if plan.target.value is None:
        raise UserError(
            "times to a target are compared, and there is none: give target_accuracy, or one such "
            "as target.loss=3.2"
        )


class Field(NamedTuple):
    """All that are compared, and why others are not, by name."""

    candidates: list[Candidate]
    left_out: dict[str, str]

    def remarks(self) -> list[str]:
        """A line for each that was left out."""
        lines = []
        for algo, reason in self.left_out.items():
            fact = reason.split(": ")[0]  # what follows is what to do about it
            lines.append(f"Left out: {fact if fact.startswith(algo) else f'{algo}: {fact}'}.")
        return lines


def gather(
    choice: Choice,
    num_seeds: int,
    *,
    shares_host: bool = False,
    check: Callable[[Sequence[Plan]], None] = lambda plans: None,
    num_rehearsals: int = NUM_REHEARSALS,
    briefly: bool = True,
    work: Work | None = None,
    expect: Callable[[Sequence[float]], None] = lambda seconds: None,
) -> Field:
    """Make and rehearse the candidates of `choice`, with the seeds from its own on.

    Args:
        choice: of algorithms.
        num_seeds: of each.
        shares_host: whether all workers compute on this host, as real runs here do.
        check: is given a plan of each algorithm before anything takes time, and may raise
            `UserError`.
        num_rehearsals: of each algorithm, in turn, at the most.
        briefly: whether short ones do, and two where these agree.
        work: all that the command does, of which rehearsing is a part.
        expect: is given what a training of each algorithm may take on one core, by rehearsals so
            far.

    Raises:
        UserError: an algorithm that was named cannot be simulated so, or none can.
    """
    torch.set_num_threads(1)  # a pool of threads would not survive the forks of a rehearsal
    plans, left_out = _plans(choice, num_seeds, shares_host)
    check([own[0] for own in plans])
    data = _load(plans[0][0])
    profiles = _profiles([own[0] for own in plans], data, num_rehearsals, briefly, work, expect)
    pairs = zip(plans, profiles, strict=True)
    stackings: dict[int, StackingChoice] = {}
    candidates = [Candidate(own, data, profile, stackings) for own, profile in pairs]
    return Field(candidates, left_out)


def _stacking(candidate: Candidate, at_once: int) -> StackingChoice:
    """How the workers of all candidates are computed, which share one model: measured once."""
    known, threads = candidate.stackings, max(1, usable_cores() // at_once)

    def choose() -> StackingChoice:
        torch.set_num_threads(threads)
        return choose_stacking(candidate.plans[0], candidate.data)

    if threads not in known:
        doing = "measuring how to compute workers"
        known[threads] = run_in_child(choose, doing=doing, limit_s=LIMIT_S)
        say(str(known[threads]))
    return known[threads]


def _plans(
    choice: Choice, num_seeds: int, shares_host: bool
) -> tuple[list[list[Plan]], dict[str, str]]:
    plans, left_out = [], {}
    for algo in choice.algos:
        try:
            plans.append(_plans_of(algo, choice.others, num_seeds, shares_host))
        except UserError as error:
            if choice.are_named:
                raise
            left_out[algo] = str(error)
    if not plans:
        raise UserError(next(iter(left_out.values())))
    return plans, left_out


def _plans_of(algo: str, overrides: Sequence[str], num_seeds: int, shares_host: bool) -> list[Plan]:
    """One for each seed; a run stops at the target unless `overrides` want it to go on."""
    config = composed(algo, overrides)
    if shares_host:
        config.cluster.sharing = config.workers
    plans = []
    for _ in range(num_seeds):
        plans.append(replace(make_plan(config, NO_FOLDER), trace=False))
        config.seed += 1
    if not plans[0].backend.is_simulated:
        raise UserError(NOT_SIMULATED)
    if plans[0].resume or plans[0].checkpoint_every:
        raise UserError("a prediction has no checkpoints: leave out resume and checkpoint_every")
    return plans


def _load(plan: Plan) -> TaskData:
    data = plan.load_data()
    plan.batches(data, (0,))
    check_model(plan, data)
    return data


def _profiles(
    plans: Sequence[Plan],
    data: TaskData,
    num_rounds: int,
    briefly: bool,
    work: Work | None,
    expect: Callable[[Sequence[float]], None],
) -> list[Profile]:
    """The fastest of each plan's rehearsals: other programs only ever make one slower, and rounds
    over all plans let all meet the same ones.
    """
    say(
        f"rehearsing {counted(len(plans), 'algorithm')}, at most {counted(num_rounds, 'time')} each"
    )
    rehearsals: list[list[Profile]] = [[] for _ in plans]
    if work is not None:
        work.begin(REHEARSING, [1.0] * (NUM_TOLD * num_rounds * len(plans)))

    def tell() -> None:
        if work is not None:
            work.done()

    for _ in range(num_rounds):
        for plan, own in zip(plans, rehearsals, strict=True):
            if briefly and is_settled([profile.work_s for profile in own]):
                for _ in range(NUM_TOLD):
                    tell()
            else:
                own.append(get_profile(plan, data, BRIEFLY_S if briefly else REHEARSED_S, tell))
            expect(_trainings_s(plans, rehearsals))
    fastest = [_fastest(own) for own in rehearsals]
    for plan, profile in zip(plans, fastest, strict=True):
        say(f"rehearsed {plan.names['algo']}: {1e3 * profile.work_s:.1f} ms of work a step")
    return fastest


def _fastest(rehearsals: Sequence[Profile]) -> Profile:
    return min(rehearsals, key=lambda profile: profile.work_s)


def _trainings_s(plans: Sequence[Plan], rehearsals: Sequence[Sequence[Profile]]) -> list[float]:
    """What a training of each may take; of those that were not rehearsed, what others' do."""
    pairs = zip(plans, rehearsals, strict=True)
    known = [training_s(plan, _fastest(own)) for plan, own in pairs if own]
    return [*known, *[fmean(known)] * (len(plans) - len(known))]


def is_settled(seconds: Sequence[float]) -> bool:
    """Whether rehearsals that took so long say that another one would hardly be faster."""
    if len(seconds) < 2:
        return False
    fastest, second, *_ = sorted(seconds)
    return second <= SETTLED * fastest
