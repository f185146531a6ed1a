"""The algorithms of a comparison: chosen, rehearsed, and trained once for every network."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import NamedTuple

import torch

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.messages import choices
from experiments.plan.model_check import check_model
from experiments.plan.overrides import Word, read_overrides, values_of
from experiments.plan.plan import Plan
from experiments.simulated.outcome import (
    SimulatedOutcome,
    outcome_on,
    record_training,
    simulate_outcome,
)
from experiments.simulated.profile import Profile
from experiments.simulated.replay import RecordedTraining
from experiments.simulated.simulate import get_profile
from experiments.tasks.base import TaskData
from host.commands import say
from host.errors import UserError
from host.words import counted
from netsim.conditions.condition import NetworkCondition

NUM_REHEARSALS = 3


class Candidate:
    """One algorithm, by a plan for each seed. Trained when first asked for, and not again where
    timing changes nothing.
    """

    def __init__(self, plans: Sequence[Plan], data: TaskData, profile: Profile) -> None:
        self.plans = plans
        self.data = data
        self.profile = profile
        self._trainings: list[RecordedTraining] = []

    @property
    def algo(self) -> str:
        """The name of its configuration."""
        return self.plans[0].names["algo"]

    @property
    def depends_on_timing(self) -> bool:
        """Whether it is trained again for every network."""
        return self.plans[0].algorithm.depends_on_timing

    def outcomes(self, net: NetworkCondition) -> list[SimulatedOutcome]:
        """One for each seed, on a network.

        Raises `UserError` as `check_nodes` does.
        """
        check_nodes(self.plans[0], net)
        there = [replace(plan, net=net) for plan in self.plans]
        if self.depends_on_timing:
            return [self._simulate(plan) for plan in there]
        self._trainings = self._trainings or [self._train(plan) for plan in self.plans]
        pairs = zip(there, self._trainings, strict=True)
        return [outcome_on(plan, self.profile, training) for plan, training in pairs]

    def _train(self, plan: Plan) -> RecordedTraining:
        started_s = time.monotonic()
        training = record_training(plan, self.data, self.profile)
        scores = [row.value for row in training.evaluations if row.value is not None]
        best = reduce(plan.target.better, scores, math.nan)
        self._say(plan, f"for every network: {plan.target.metric} {best:.3f}", started_s)
        return training

    def _simulate(self, plan: Plan) -> SimulatedOutcome:
        started_s = time.monotonic()
        outcome = simulate_outcome(plan, self.data, self.profile)
        where = f"{plan.net.rate_mbit or 'unlimited'} Mbit/s, {plan.net.delay_ms:g} ms"
        self._say(plan, f"at {where}: {plan.target.metric} {outcome.score:.3f}", started_s)
        return outcome

    def _say(self, plan: Plan, what: str, started_s: float) -> None:
        took_s = time.monotonic() - started_s
        say(f"trained {self.algo}, seed {plan.seed}, {what} ({took_s:.0f} s)")


def check_nodes(plan: Plan, net: NetworkCondition) -> None:
    """Raise `UserError` where `plan` averages within nodes, and the network `net` has others, or
    none.
    """
    if plan.algorithm.needs_nodes and replace(plan, net=net).nodes != plan.nodes:
        raise UserError(
            f"{plan.names['algo']} averages within nodes: compare networks with the same nodes "
            "only, or take algo.hierarchical=false"
        )


class Choice(NamedTuple):
    """The algorithms that a command line asks for, and its other overrides."""

    algos: list[str]
    are_named: bool
    """One by one: all of them must work, where those of a glob may be left out."""
    others: list[str]


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


def choose(overrides: Sequence[str]) -> Choice:
    """The algorithms of `overrides`: algo=a,b or algo=glob(...); without, all there are.

    Raises `UserError` for what cannot be parsed, and for several choices of anything else.
    """
    algos, are_named, others = choices("algo"), False, []
    for word in read_overrides(overrides):
        if word.key == "algo":
            algos, are_named = _names(word), not word.is_pattern
        elif word.has_several:
            raise UserError(f"{word.text} has several values: only algo may have them, give one")
        else:
            others.append(word.text)
    return Choice(algos, are_named, others)


def gather(
    choice: Choice,
    num_seeds: int,
    folder: Path,
    *,
    shares_host: bool = False,
    check: Callable[[Sequence[Plan]], None] = lambda plans: None,
    num_rehearsals: int = NUM_REHEARSALS,
) -> Field:
    """Make and rehearse the candidates of `choice`, with the seeds from its own on.

    Args:
        choice: of algorithms.
        num_seeds: of each.
        folder: of runs that need one.
        shares_host: whether all workers compute on this host, as real runs here do.
        check: is given a plan of each algorithm before anything takes time, and may raise
            `UserError`.
        num_rehearsals: of each algorithm, in turn.

    Raises:
        UserError: an algorithm that was named cannot be simulated so, or none can.
    """
    if num_seeds < 1:
        raise UserError(f"--seeds must be at least 1, got {num_seeds}")
    torch.set_num_threads(1)  # a pool of threads would not survive the forks of a rehearsal
    plans, left_out = _plans(choice, num_seeds, folder, shares_host)
    check([own[0] for own in plans])
    if plans[0][0].target.value is None:
        raise UserError(
            "times to a target are compared, and there is none: give target_accuracy, or one such "
            "as target.loss=3.2"
        )
    data = _load(plans[0][0])
    profiles = _profiles([own[0] for own in plans], data, num_rehearsals)
    pairs = zip(plans, profiles, strict=True)
    candidates = [Candidate(own, data, profile) for own, profile in pairs]
    return Field(candidates, left_out)


def _names(word: Word) -> list[str]:
    names = word.chosen(choices("algo"))
    if not any(names):
        raise UserError(f"{word.text} matches none of {', '.join(choices('algo'))}")
    return names


def _plans(
    choice: Choice, num_seeds: int, folder: Path, shares_host: bool
) -> tuple[list[list[Plan]], dict[str, str]]:
    plans, left_out = [], {}
    for algo in choice.algos:
        try:
            plans.append(_plans_of(algo, choice.others, num_seeds, folder, shares_host))
        except UserError as error:
            if choice.are_named:
                raise
            left_out[algo] = str(error)
    if not plans:
        raise UserError(next(iter(left_out.values())))
    return plans, left_out


def _plans_of(
    algo: str, overrides: Sequence[str], num_seeds: int, folder: Path, shares_host: bool
) -> list[Plan]:
    """One for each seed; a run stops at the target unless `overrides` want it to go on."""
    backend = [] if "backend" in values_of(overrides) else ["backend=sim"]
    config = compose_config([f"algo={algo}", *backend, "stop_at_target=true", *overrides])
    if shares_host:
        config.cluster.sharing = config.workers
    plans = []
    for _ in range(num_seeds):
        plans.append(make_plan(config, folder))
        config.seed += 1
    if not plans[0].backend.is_simulated:
        raise UserError("times are predicted by simulation: leave out backend=...")
    if plans[0].resume or plans[0].checkpoint_every:
        raise UserError("a prediction has no checkpoints: leave out resume and checkpoint_every")
    return plans


def _load(plan: Plan) -> TaskData:
    data = plan.task.load()
    plan.batches(data, (0,))
    check_model(plan, data)
    return data


def _profiles(plans: Sequence[Plan], data: TaskData, num_rounds: int) -> list[Profile]:
    """The fastest of each plan's rehearsals: other programs only ever make one slower, and rounds
    over all plans let all meet the same ones.
    """
    say(f"rehearsing {counted(len(plans), 'algorithm')}, {num_rounds} times each")
    rounds = [[get_profile(plan, data) for plan in plans] for _ in range(num_rounds)]
    fastest = [
        min(profiles, key=lambda profile: profile.work_s) for profiles in zip(*rounds, strict=True)
    ]
    for plan, profile in zip(plans, fastest, strict=True):
        say(f"rehearsed {plan.names['algo']}: {1e3 * profile.work_s:.1f} ms of work a step")
    return fastest
