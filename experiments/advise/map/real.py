"""Real runs as points of the map: where they lie on it, and how long they took beside what it says.

A folder of such runs, of one task and one number of workers that were trained for the map, has

    targets.yaml    by which the trainings were scored
    profile.yaml    a worker's own work on that host, with all workers at once
    */              runs of settings that the map has, on networks, with seeds

The job of a run is the profile's compute, the model's gradients, and its network's link. The map's
seconds are those of the run's own steps, so that nothing but time is compared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.advise.advice import BASELINE
from experiments.advise.map.extract import Run, load_records, own_words
from experiments.advise.map.job import Job
from experiments.advise.map.standing import lead, sent_by
from experiments.advise.map.times import times_s
from experiments.advise.map.trainings import Array, Trained, Training, load
from experiments.advise.tuning.trials import JUDGED_AT
from experiments.report.statistics import prediction_errors
from experiments.report.tuned import load_targets
from experiments.simulated.profile import Profile
from host import markdown
from host.errors import UserError
from host.words import counted, significant

TARGETS, PROFILE = "targets.yaml", "profile.yaml"
COMMAND = "python -m experiments.locate --real results/runs/map_real --page results/map/real.md"

_LEADS_OF_NONE = ("-", "-", "-")
"""All-reduce's before itself, and those where it misses the target."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """One setting on one network: by seed, the steps to the target, the seconds that they really
    took, and those of the map; inf for a miss.
    """

    training: Training
    steps: Array
    real_s: Array
    map_s: Array


@dataclass(frozen=True, kw_only=True)
class Place:
    """All settings on one network: the first one is all-reduce's."""

    net: str
    job: Job
    timed: tuple[Timed, ...]

    def leads(self, own: Timed) -> tuple[float, tuple[float, float], float]:
        """How many times as soon as all-reduce: really, with its 95 % interval, and by the map."""
        ratio, interval = lead(own.real_s, self.timed[0].real_s)
        return ratio, interval, lead(own.map_s, self.timed[0].map_s)[0]

    def agrees(self, own: Timed) -> bool:
        """Whether the real lead's interval, widened by the map's error, holds the map's lead."""
        _, (low, high), said = self.leads(own)
        error = 1 + max(prediction_errors().values())
        return low / error <= said <= high * error

    def first(self, *, real: bool) -> str:
        """Who is first, by medians."""
        soonest = min(self.timed, key=lambda t: float(np.median(t.real_s if real else t.map_s)))
        return soonest.training.algo


def places(runs: Path) -> list[Place]:
    """Those of the folder, by rho.

    Raises `UserError` for records of a dirty tree, of simulated workers, of a setting that the map
    has not, or of unequal seeds, and where all-reduce is missing.
    """
    records = load_records(runs)
    if not records:
        raise UserError(f"{runs} has no record: run the part real of the study map first")
    if any(run.config["names"]["backend"] == "sim" for run in records):
        raise UserError(f"{runs} has runs of simulated workers: give a folder of real ones")
    trained = _trained(records[0])
    target = load_targets(runs)[JUDGED_AT]
    profile = Profile.load(runs / PROFILE)
    by_net: dict[str, list[Run]] = {}
    for run in records:
        by_net.setdefault(run.config["names"]["net"], []).append(run)
    found = [_place(net, own, trained, target, profile) for net, own in by_net.items()]
    return sorted(found, key=lambda place: place.job.rho)


def page(found: Sequence[Place]) -> str:
    """What is kept of it: a table, and who is first."""
    rows = [row for place in found for row in _rows(place)]
    job, seeds = found[0].job, len(found[0].timed[0].steps)
    headers = ["network", "rho", "lambda", "algorithm", "steps", "real (s)", "map (s)"]
    headers += ["real / map", "real lead", "map's lead", "agree"]
    num = sum(place.first(real=True) == place.first(real=False) for place in found)
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
            " Seconds are medians until the target 1 point below; the map's are of the same steps, "
            "on ideal hosts.",
            "Leads: how many times as soon as all-reduce, the real one with its 95 % interval. They"
            f" agree where this, widened by {error:.0f} %, holds the map's.",
            "",
            f"**On {num} of {counted(len(found), 'network')} the same algorithm is first.** "
            + " ".join(_firsts(place) for place in found),
            "",
            markdown.table(headers, rows, "lrrlrrrrrrl"),
            "",
        ]
    )


def _firsts(place: Place) -> str:
    real, said = place.first(real=True), place.first(real=False)
    return f"{place.net}: {real}" + ("." if real == said else f", by the map {said}.")


def _trained(run: Run) -> Trained:
    task, workers = run.config["names"]["task"], run.config["workers"]
    for trained in load()[1]:
        if (trained.task, trained.workers) == (task, workers):
            return trained
    raise UserError(f"the map has no training of {task} with {workers} workers")


def _place(
    net: str, runs: Sequence[Run], trained: Trained, target: float, profile: Profile
) -> Place:
    by_setting: dict[str, list[Run]] = {}
    for run in runs:
        by_setting.setdefault(own_words(run.words), []).append(run)
    trainings = {words: _training(words, trained) for words in by_setting}
    seeds = {words: sorted(run.seed for run in own) for words, own in by_setting.items()}
    if len({tuple(own) for own in seeds.values()}) > 1:
        raise UserError(f"settings have other seeds than others on {net}: {seeds}")
    job = _job(runs[0], trained, trainings[next(iter(trainings))], profile)
    timed = [
        _timed(trainings[words], sorted(own, key=lambda run: run.seed), trained, job, target)
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


def _timed(
    training: Training, runs: Sequence[Run], trained: Trained, job: Job, target: float
) -> Timed:
    steps = np.array([run.steps_to(target) for run in runs])
    return Timed(
        training=training,
        steps=steps,
        real_s=np.array([_real_s(run, target) for run in runs]),
        map_s=times_s(sent_by(trained, training, trained.workers), job, steps),
    )


def _real_s(run: Run, target: float) -> float:
    reached = (row.time_s for row in run.rows if (row.accuracy or 0.0) >= target)
    return min(reached, default=math.inf)


def _rows(place: Place) -> list[list[str]]:
    rows = []
    for own in place.timed:
        real_s, map_s = float(np.median(own.real_s)), float(np.median(own.map_s))
        ratio, (low, high), said = place.leads(own)
        between = f"{significant(ratio)} ({significant(low)} to {significant(high)})"
        leads = (between, significant(said), "yes" if place.agrees(own) else "no")
        rows.append(
            [
                place.net,
                significant(place.job.rho),
                significant(place.job.lambda_),
                own.training.algo,
                f"{np.median(own.steps):g}",
                significant(real_s),
                significant(map_s),
                significant(real_s / map_s),
                *(_LEADS_OF_NONE if own is place.timed[0] or math.isnan(low) else leads),
            ]
        )
    return rows
