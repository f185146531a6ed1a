"""Real runs as points of the map: where they lie on it, and how long they took beside what it says.

A folder of such runs, of one task and one number of workers that were trained for the map, has

    targets.yaml              by which the trainings were scored
    profiles/allreduce.yaml   a worker's own work on that host, with all workers at once
    */                        runs of settings that the map has, on networks, with seeds: by real
                              workers, and each once more by simulated ones

The job of a run is the profile's compute, the model's gradients, and its network's link. The map's
hosts are ideal; simulated workers have what messages and cores cost on this host. So one comparison
tells what the model of a host is worth, the other one what the map leaves out. Seconds of both are
those of the real run's own steps, so that nothing but time is compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from experiments.advise.advice import BASELINE
from experiments.advise.map.extract import Run, load_records, targets_of
from experiments.advise.map.job import Job
from experiments.advise.map.standing import lead, sent_by
from experiments.advise.map.times import times_s
from experiments.advise.map.trainings import Array, Trained, Training, load
from experiments.advise.tuning.trials import JUDGED_AT
from experiments.report.statistics import is_tie, prediction_errors
from experiments.simulated.profile import Profile
from host import markdown
from host.errors import UserError
from host.words import counted, listed, significant

PROFILE = "profiles/allreduce.yaml"
COMMAND = "python -m experiments.locate --real results/runs/map_real --page results/map/real.md"

_LEADS_OF_NONE = ("-", "-", "-", "-", "-")
"""All-reduce's before itself, and those of which one side misses the target."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One setting on one network: by seed, the steps to the target, and the seconds that they took
    really, by simulated workers, and by the map; inf for a miss.
    """

    training: Training
    steps: Array
    real_s: Array
    simulated_s: Array
    map_s: Array

    @property
    def is_reached(self) -> bool:
        """Whether the median of the seeds is no miss."""
        return math.isfinite(np.median(self.steps))


By = Literal["real", "simulated", "map"]
_MODELS: tuple[tuple[By, str], ...] = (
    ("simulated", "simulated workers of this host"),
    ("map", "the map"),
)
"""What real runs are compared with."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """All settings on one network: the first one is all-reduce's."""

    net: str
    job: Job
    timed: tuple[Timed, ...]

    def lead(self, own: Timed, by: By) -> tuple[float, tuple[float, float]]:
        """How many times as soon as all-reduce, with the 95 % interval of the seeds."""
        return lead(_seconds(own, by), _seconds(self.timed[0], by))

    def agrees(self, own: Timed, by: By) -> bool:
        """Whether the real lead's interval, widened by the model's error, holds the lead `by`."""
        (_, (low, high)), (said, _) = self.lead(own, "real"), self.lead(own, by)
        error = 1 + max(prediction_errors().values())
        return low / error <= said <= high * error

    def has_lead(self, own: Timed) -> bool:
        """Whether it can be compared with all-reduce: it is another one, and both get there."""
        baseline = self.timed[0]
        return own is not baseline and own.is_reached and baseline.is_reached

    def firsts(self, by: By) -> list[str]:
        """Who is first, by medians, and after it who ties with it: none whose median is a miss."""
        times = {own.training.algo: _seconds(own, by) for own in self.timed}
        first = min(times, key=lambda algo: float(np.median(times[algo])))
        error = 0.0 if by == "real" else max(prediction_errors().values())
        others = [algo for algo in times if algo != first and np.isfinite(np.median(times[algo]))]
        return [first] + [
            algo
            for algo in others
            if is_tie(list(times[first]), list(times[algo]), paired=True, model_error=error)
        ]


def _seconds(timed: Timed, by: By) -> Array:
    return {"real": timed.real_s, "simulated": timed.simulated_s, "map": timed.map_s}[by]


def places(runs: Path) -> list[Place]:
    """Those of the folder, by rho.

    Raises `UserError` for a folder without targets, for records of a dirty tree, of a setting that
    the map has not, of unequal seeds or of unlike tasks, where all-reduce is missing, and for a
    real run without its simulated one.
    """
    records = load_records(runs)
    real = [run for run in records if not _is_simulated(run)]
    if not real:
        raise UserError(
            f"{runs} has no record of real workers: run the part real of the study map first"
        )
    simulated = {_key(run): run for run in records if _is_simulated(run)}
    trained = _trained(real[0])
    for run in records:
        if _trained(run) is not trained:
            raise UserError(
                f"{run.folder} is of another task, model or number of workers than "
                f"{real[0].folder}: move one of them away"
            )
    target = targets_of(runs)[JUDGED_AT]
    profile = Profile.load(runs / PROFILE)
    by_net: dict[str, list[Run]] = {}
    for run in real:
        by_net.setdefault(_net(run), []).append(run)
    found = [_place(net, own, simulated, trained, target, profile) for net, own in by_net.items()]
    return sorted(found, key=lambda place: place.job.rho)


def _is_simulated(run: Run) -> bool:
    return run.config["names"]["backend"] == "sim"


def _net(run: Run) -> str:
    return run.config["names"]["net"]


def _key(run: Run) -> tuple[str, str, int]:
    return _net(run), run.setting, run.seed


def page(found: Sequence[Place]) -> str:
    """What is kept of it: a table, and who is first."""
    rows = [row for place in found for row in _rows(place)]
    job, seeds = found[0].job, len(found[0].timed[0].steps)
    headers = ["network", "rho", "lambda", "algorithm", "steps"]
    headers += ["real (s)", "simulated (s)", "map (s)", "real / simulated", "real / map"]
    headers += ["real lead", "simulated", "agree", "map", "agree"]
    error = 100 * max(prediction_errors().values())
    return "\n".join(
        [
            "# Real runs on the map",
            "",
            f"    {COMMAND}",
            "",
            "made this page from the records.",
            f"{counted(job.workers, 'real worker')} on one host, {counted(seeds, 'seed')}; compute "
            f"{significant(job.compute_ms)} ms a step, gradients of {significant(job.model_mb)} MB."
            " Seconds are medians until the target 1 point below. Those of simulated workers, with"
            " the costs of this host, and of the map, on ideal hosts, are of the same steps.",
            "Leads: how many times as soon as all-reduce, the real one with its 95 % interval. They"
            f" agree where this, widened by {error:.0f} %, holds the simulated lead, or the map's.",
            "",
            *_who_is_first(found),
            "",
            markdown.table(headers, rows, "lrrlrrrrrrlrlrl"),
            "",
        ]
    )


def _who_is_first(found: Sequence[Place]) -> list[str]:
    lines = []
    others = [(place, own) for place in found for own in place.timed if place.has_lead(own)]
    for by, whose in _MODELS:
        firsts = sum(place.firsts(by)[0] in place.firsts("real") for place in found)
        leads = sum(place.agrees(own, by) for place, own in others)
        lines.append(
            f"- Of {whose}: the first algorithm is the real one, or ties with it, on {firsts} of "
            f"{counted(len(found), 'network')}; {leads} of {counted(len(others), 'lead')} agree."
        )
    for place in found:
        real, simulated, said = (_said(place.firsts(by)) for by in ("real", "simulated", "map"))
        lines.append(f"- {place.net}: {real} is first; simulated, {simulated}; by the map, {said}.")
    return lines


def _said(firsts: Sequence[str]) -> str:
    """Such as "a (tied with b and c)"."""
    return f"{firsts[0]} (tied with {listed(firsts[1:])})" if firsts[1:] else firsts[0]


def _trained(run: Run) -> Trained:
    workers, model = run.config["workers"], run.config["model"]
    for trained in load()[1]:
        if trained.task in run.called and (trained.workers, trained.model) == (workers, model):
            return trained
    raise UserError(
        f"{run.folder}: the map has no training of {run.called[1]} with {workers} workers"
    )


def _place(
    net: str,
    runs: Sequence[Run],
    simulated: Mapping[tuple[str, str, int], Run],
    trained: Trained,
    target: float,
    profile: Profile,
) -> Place:
    by_setting: dict[str, list[Run]] = {}
    for run in runs:
        by_setting.setdefault(run.setting, []).append(run)
    trainings = {words: _training(words, trained) for words in by_setting}
    seeds = {words: sorted(run.seed for run in own) for words, own in by_setting.items()}
    if len({tuple(own) for own in seeds.values()}) > 1:
        raise UserError(f"settings have other seeds than others on {net}: {seeds}")
    job = _job(runs[0], trained, trainings[next(iter(trainings))], profile)
    timed = [
        _timed(
            trainings[words],
            [(run, _simulated(run, simulated)) for run in sorted(own, key=lambda run: run.seed)],
            *(trained, job, target),
        )
        for words, own in by_setting.items()
    ]
    timed.sort(key=lambda t: (t.training.algo != BASELINE, t.training.words))
    if [t.training.algo for t in timed].count(BASELINE) != 1:
        raise UserError(f"{net} has not one setting of {BASELINE}: leads are before it")
    return Place(net=net, job=job, timed=tuple(timed))


def _training(words: str, trained: Trained) -> Training:
    for training in trained.trainings:
        if set(training.words.split()) == set(words.split()):
            return training
    raise UserError(f"no setting of the map is {words}")


def _job(run: Run, trained: Trained, training: Training, profile: Profile) -> Job:
    net = run.config["net"]
    if net["rate_mbit"] is None:
        raise UserError(f"{run.folder} is on no network: the map wants a rate")
    compute_s = profile.forward_s + profile.backward_s + profile.optimizer_s
    return Job(
        compute_ms=1000 * compute_s,
        model_mb=sent_by(trained, training, trained.workers).num_bytes / 1e6,
        workers=trained.workers,
        rate_mbit=net["rate_mbit"],
        delay_ms=net["delay_ms"],
        loss_pct=net["loss_pct"],
    )


def _simulated(run: Run, simulated: Mapping[tuple[str, str, int], Run]) -> Run:
    if _key(run) not in simulated:
        raise UserError(f"{run.folder} has no run of simulated workers beside it: run part real")
    return simulated[_key(run)]


def _timed(
    training: Training,
    runs: Sequence[tuple[Run, Run]],
    trained: Trained,
    job: Job,
    target: float,
) -> Timed:
    """Of real runs, each with its simulated one."""
    steps = np.array([real.steps_to(target) for real, _ in runs])
    return Timed(
        training=training,
        steps=steps,
        real_s=np.array([_time_s(real, at) for (real, _), at in zip(runs, steps, strict=True)]),
        simulated_s=np.array([_time_s(sim, at) for (_, sim), at in zip(runs, steps, strict=True)]),
        map_s=times_s(sent_by(trained, training, trained.workers), job, steps),
    )


def _time_s(run: Run, step: float) -> float:
    """After so many steps, in proportion between two evaluations; inf for infinitely many, and for
    a run that diverged.

    Raises `UserError` for a run that was not evaluated before and after.
    """
    if math.isinf(step) or not run.rows:
        return math.inf
    evaluated = [row.step for row in run.rows]
    if not evaluated[0] <= step <= evaluated[-1]:
        raise UserError(
            f"{run.folder} has no evaluations around step {step:g}, which its partner has: run "
            "both alike"
        )
    return float(np.interp(step, evaluated, [row.time_s for row in run.rows]))


def _rows(place: Place) -> list[list[str]]:
    return [_row(place, own) for own in place.timed]


def _row(place: Place, own: Timed) -> list[str]:
    real_s = float(np.median(own.real_s))
    models_s = [float(np.median(_seconds(own, by))) for by, _ in _MODELS]
    ratio, (low, high) = place.lead(own, "real")
    leads = [f"{significant(ratio)} ({significant(low)} to {significant(high)})"]
    for by, _ in _MODELS:
        leads += [significant(place.lead(own, by)[0]), "yes" if place.agrees(own, by) else "no"]
    ratios = [real_s / seconds if math.isfinite(seconds) else math.inf for seconds in models_s]
    return [
        place.net,
        significant(place.job.rho),
        significant(place.job.lambda_),
        own.training.algo,
        f"{np.median(own.steps):.0f}" if own.is_reached else "missed",
        *(_finite(number) for number in (real_s, *models_s, *ratios)),
        *(leads if place.has_lead(own) and not math.isnan(low) else _LEADS_OF_NONE),
    ]


def _finite(number: float) -> str:
    return significant(number) if math.isfinite(number) else "-"
