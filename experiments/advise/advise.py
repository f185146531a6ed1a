"""Which algorithm reaches the accuracy first, on each of several networks."""

import math
import sys
from collections.abc import Sequence

from rich.text import Text

from experiments.advise.advice import Advice
from experiments.advise.candidates import (
    REHEARSAL_S,
    REHEARSING,
    TRAINING,
    TRAINING_S,
    Candidate,
    Field,
    check_network,
    check_target,
    gather,
    outcomes_of,
)
from experiments.advise.choice import NUM_REHEARSALS, Choice, NamedNetwork, called
from experiments.advise.rank import Prediction, ranked, tie_rule
from experiments.advise.verify import REAL_RUN_S, check_launchable, measured_times_s
from experiments.plan.plan import Plan
from experiments.report.statistics import prediction_error
from host.command_line.console import Console
from host.cores import usable_cores
from host.remaining import Work
from host.words import counted
from netsim.conditions.condition import NetworkCondition


def advise(
    choice: Choice,
    networks: Sequence[NamedNetwork] = (),
    *,
    num_seeds: int = 3,
    num_verified: int = 0,
) -> tuple[list[Advice], list[str]]:
    """The advice for each network, printed as it comes, and what is to be said of all.

    Args:
        choice: of algorithms, for the first of the networks.
        networks: none: the one network of `choice`.
        num_seeds: trainings of each algorithm.
        num_verified: how many first choices are run for real; all workers then share this host,
            in the predictions, too.

    Raises:
        UserError: something cannot be simulated so, or run here.
        RunFailedError: a real run failed.
    """

    def check(plans: Sequence[Plan]) -> None:
        check_target(plans[0])
        conditions = [other.condition for other in networks] or [plans[0].net]
        for plan in plans:
            for condition in conditions:
                check_network(plan, condition)
        if num_verified:
            check_launchable(plans, conditions)
        _expect(work, plans, len(conditions), num_seeds, num_verified)
        compared.extend(plans)

    def expect(seconds: Sequence[float]) -> None:
        for number in range(len(networks) or 1):
            _expect_trainings(work, number, compared, seconds, num_seeds, is_measured=True)

    given, work = [], Work()
    compared: list[Plan] = []
    field = gather(
        choice, num_seeds, shares_host=num_verified > 0, check=check, work=work, expect=expect
    )
    for network in networks or [_own_network(choice, field.candidates[0])]:
        given.append(_advice(field.candidates, network, num_verified, work, len(given)))
        _print(given[-1])
    return given, _notes(field)


def _expect(
    work: Work, plans: Sequence[Plan], num_networks: int, num_seeds: int, num_verified: int
) -> None:
    """Tell `work` its parts: for the first network all are trained, for others what has to be."""
    work.expect(REHEARSING, NUM_REHEARSALS * len(plans) * REHEARSAL_S)
    for number in range(num_networks):
        _expect_trainings(work, number, plans, [TRAINING_S] * len(plans), num_seeds)
        work.expect(_verifying(number), min(num_verified, len(plans)) * num_seeds * REAL_RUN_S)


def _expect_trainings(
    work: Work,
    number: int,
    plans: Sequence[Plan],
    seconds: Sequence[float],
    num_seeds: int,
    *,
    is_measured: bool = False,
) -> None:
    """A training takes so many `seconds` on one core, by plan; for networks after the first, those
    alone are trained that depend on it.
    """
    pairs = zip(plans, seconds, strict=True)
    own = [took_s for plan, took_s in pairs if not number or plan.algorithm.depends_on_timing]
    at_once = max(1, min(num_seeds * len(own), usable_cores()))
    work.expect(_training(number), num_seeds * sum(own) / at_once, is_measured=is_measured)


def _training(number: int) -> str:
    """The part of the network of that number."""
    return f"{TRAINING} {number}"


def _verifying(number: int) -> str:
    return f"verifying {number}"


def _own_network(choice: Choice, candidate: Candidate) -> NamedNetwork:
    plan = candidate.plans[0]
    return NamedNetwork(called(plan.names["net"], choice.others), plan.net)


def _advice(
    candidates: Sequence[Candidate],
    network: NamedNetwork,
    num_verified: int,
    work: Work,
    number: int,
) -> Advice:
    plan = candidates[0].plans[0]
    outcomes = outcomes_of(candidates, network.condition, work, _training(number))
    predictions = ranked(
        (
            Prediction(algo=candidate.algo, outcomes=own)
            for candidate, own in zip(candidates, outcomes, strict=True)
        ),
        plan.target,
    )
    chosen = [prediction.algo for prediction in predictions[:num_verified]]
    if chosen:
        work.begin(_verifying(number), [1.0] * (len(chosen) * len(candidates[0].plans)))
    return Advice(
        situation=f"{plan.names['task']}, {plan.names['model']}, network {network.name}, "
        f"{counted(plan.workers, 'worker')}",
        target=plan.target,
        predictions=predictions,
        model_error=prediction_error(slowest_rate_mbit(network.condition, plan.workers)),
        measured_s={
            candidate.algo: measured_times_s(candidate, network.condition, work)
            for candidate in candidates
            if candidate.algo in chosen
        },
    )


def slowest_rate_mbit(net: NetworkCondition, num_workers: int) -> float | None:
    """The rate of the slowest link, which all wait for; where it changes, the highest of these, at
    which predictions are worst. None: unlimited.
    """
    ranks = range(min(num_workers, net.max_rank_named + 2))  # the last one has nothing of its own
    rates = []
    for at_s in net.times_s:
        links = [net.link(rank, way, at_s) for rank in ranks for way in ("up", "down")]
        links += [net.node_link("up"), net.node_link("down")]
        rates.append(min(link.rate_mbit or math.inf for link in links))
    return None if math.isinf(max(rates)) else max(rates)


def _print(advice: Advice) -> None:
    console = Console(width=None if sys.stdout.isatty() else 250)
    console.print(advice.table())
    for sentence in advice.sentences():
        console.print(Text(sentence), soft_wrap=True)


def _notes(field: Field) -> list[str]:
    """How all of it was predicted, and what was left out."""
    plan, profile = field.candidates[0].plans[0], field.candidates[0].profile
    sharing = "each on a device alone" if profile.sharing == 1 else f"{profile.sharing} on a device"
    again = [candidate.algo for candidate in field.candidates if candidate.depends_on_timing]
    return [
        tie_rule(),
        f"Compute times are those of one worker's rehearsal ({profile.device}, {sharing}); one "
        f"training for each algorithm and seed gives the accuracies on every network, of at most "
        f"{counted(plan.max_steps, 'step')} at the learning rates of the configuration.",
        *(f"The values of {algo} depend on timing: trained on each network." for algo in again),
        *field.remarks(),
    ]
