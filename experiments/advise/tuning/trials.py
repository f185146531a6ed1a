"""What trials came to that were drawn beforehand: targets by rule, and the best setting for each
contestant and network.

    target    the median final accuracy of the tuned baseline, less 2, 1, 0.5 and 0.2 points, by
              several of tuning's seeds
    best      the trial whose first evaluation at the target one point below is the soonest; where
              no trial gets there, that of the highest final accuracy; of a contestant, or of an
              algorithm, which may have several

All accuracies are those of the examples that tune (`data.for_tuning`), but for targets that are
measured where runs score: one setting may end points higher on other examples. A trial that
diverged has reached no target, as a run that scores.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from experiments.advise.tuning.draws import Settings
from experiments.plan.overrides import saved_overrides, values_of
from experiments.report.configurations import differing, read_config
from experiments.report.tuned import POINTS
from experiments.runs.load import load_rows
from experiments.runs.study import Standing, read_record
from experiments.runs.summary import read_summary
from experiments.tasks.target import Target
from experiments.training.metrics import MetricsRow, reaching
from host.errors import UserError
from host.words import counted, listed

JUDGED_AT = 1.0
"""Points below the baseline's final accuracy, of the target by which settings are chosen."""

_BASELINE = "allreduce"
"""What `algo` says of a contestant that is a baseline."""

_SHARED = (
    *("task", "data", "model", "schedule", "precision", "clip_norm", "accumulate"),
    *("workers", "batch_size", "max_steps", "eval_every", "target_accuracy", "lr_scale"),
    *("streams", "pattern", "bucket_bytes"),
)
"""What all trials of a folder have in common, but for what some setting names. The optimizer is not
here, for an algorithm may bring its own.
"""

OF_SCORING = {"target_accuracy", "task.target_accuracy", "data.for_tuning"}
"""In what alone a run that scores differs from its trial, but for the seed. A task's own target is
the run's where no word names one.
"""
_TUNES = "data.for_tuning=true"
"""The word of a run that learns, and is judged, by examples that score nothing."""

_Words = frozenset[str]
"""Of a setting."""

_Run = tuple[_Words, str, str | None]
"""The setting of a run, its network and its seed."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One trial on one network, with one seed.

    Args:
        contestant: whose it is.
        words: of its setting.
        net: of the run.
        folder: of the run.
        evaluations: each with an accuracy.
        place: where its times are of, if that is not the network of the run.
    """

    contestant: str
    words: str
    net: str
    folder: Path
    evaluations: Sequence[MetricsRow]
    place: str | None = None

    @property
    def algo(self) -> str:
        """As its words say; the contestant's name where they do not."""
        return values_of(self.words.split()).get("algo", self.contestant)

    @property
    def at(self) -> str:
        """Where it is compared with others: its place, else its network."""
        return self.net if self.place is None else self.place

    @property
    def final(self) -> float:
        """The accuracy of the last evaluation; 0 of a run that diverged."""
        return next((row.accuracy or 0.0 for row in reversed(self.evaluations)), 0.0)

    def time_s(self, target: float) -> float:
        """Seconds until the first evaluation with this accuracy; inf for a miss."""
        reached = reaching(self.evaluations, Target(value=target))
        return math.inf if reached is None else reached.time_s


def load_trials(settings: Settings, folder: Path, *, may_score: bool = False) -> list[Trial]:
    """Those of the runs in `folder` that are done and have the words of a setting; of several
    settings whose words a run has, it is of the one that says most.

    Raises `UserError` where a setting lacks a run on a network or with a seed that others have, or
    has two, where two contestants have the same setting, a run did not learn by `data.for_tuning`
    (but for those that `may_score`), was scored by another metric than accuracy, does not say its
    words, its network or its evaluations, or differs from others in what no setting names, such as
    the number of steps.
    """
    known = _by_words(settings)
    trials, found = [], dict[_Run, Path]()
    for file in sorted(folder.rglob("environment.json")):
        given = _given(file.parent)
        if not may_score and _TUNES not in given:
            raise UserError(f"{file.parent} is no trial: it has not {_TUNES}")
        record = read_record(file.parent, is_held=False)
        if record is None or record.standing is not Standing.DONE:
            continue
        values = values_of(given)
        for words in _said_most(known, set(given)):
            name, text = known[words]
            if "net" not in values:
                raise UserError(f"{file.parent} does not say its network: run it with net=NAME")
            one = words, values["net"], values.get("seed")
            if one in found:
                raise UserError(
                    f"{found[one]} and {file.parent} are two runs of {_said(text, *one[1:])}: keep "
                    "those of one command"
                )
            found[one] = file.parent
            trials.append(_trial(name, text, values["net"], file.parent, record.status))
    if missing := _wanted(known, set(found)) - found.keys():
        first = min(_said(known[words][1], net, seed) for words, net, seed in missing)
        raise UserError(
            f"{folder} lacks {counted(len(missing), 'trial')}: run them first, such as {first}; a "
            "setting that is refused there needs a net=NAME of its own"
        )
    _check_alike(settings, trials)
    return trials


def _check_alike(settings: Settings, trials: Sequence[Trial]) -> None:
    """The same words may mean something else at another commit."""
    words = (word for own in settings.values() for text in own for word in text.split())
    shared = set(_SHARED) - {re.split("[./=]", word)[0] for word in words}
    configs = [read_config(trial.folder) for trial in trials]
    for trial, config in zip(trials[1:], configs[1:], strict=True):
        for option in sorted(differing([configs[0], config])):
            if option.partition(".")[0] in shared:
                raise UserError(
                    f"{trials[0].folder} and {trial.folder} differ in {option}, which no setting "
                    "names: trials of one folder are all run alike"
                )


def load_tried(settings: Settings, folder: Path) -> list[Trial]:
    """Those of `load_trials`, of one seed, so that no setting has more chances than others.

    Raises `UserError` for several seeds, else as `load_trials`.
    """
    trials = load_trials(settings, folder)
    found: dict[tuple[str, str], Trial] = {}
    for trial in trials:
        other = found.setdefault((trial.words, trial.net), trial)
        if other is not trial:
            raise UserError(
                f"{other.folder} and {trial.folder} are trials of {_said(trial.words, trial.net)}, "
                "whose luckier seed would choose: leave one seed in the folder"
            )
    return trials


def load_scored(tuned: Sequence[Trial], folder: Path) -> list[Trial]:
    """The runs of the setting of `tuned`, of one trial with several seeds, on the examples that
    score.

    Raises `UserError` as `load_trials`, for other seeds than those of `tuned`, for a run that has
    `data.for_tuning`, and for one that differs in more than `OF_SCORING`.
    """
    words = {tuned[0].contestant: [tuned[0].words]}
    runs = load_trials(words, folder, may_score=True)
    seeds, known = (
        sorted(values_of(_given(run.folder)).get("seed", "") for run in own)
        for own in (runs, tuned)
    )
    if seeds != known:
        raise UserError(
            f"{folder} has runs of the seeds {listed(seeds)}, and {tuned[0].folder.parent} of "
            f"{listed(known)}: run both with the same ones"
        )
    for run in runs:
        if _TUNES in _given(run.folder):
            raise UserError(f"{run.folder} scores nothing: it has {_TUNES}; run it without")
        both = [read_config(own.folder) for own in (tuned[0], run)]
        if others := sorted(differing(both) - OF_SCORING):
            raise UserError(
                f"{run.folder} and {tuned[0].folder} differ in {listed(others)}: run both alike"
            )
    return runs


def _given(folder: Path) -> list[str]:
    """The words of a run."""
    try:
        return saved_overrides(folder)
    except ValueError as error:
        raise UserError(f"{error}: leave that run out") from error


def _said(text: str, net: str, seed: str | None = None) -> str:
    """Such as "'algo=qsgd' on wan with seed 0"; where no run says network or seed, without."""
    where = f" on {net}" if net else ""
    return f"{text!r}{where}" if seed is None else f"{text!r}{where} with seed {seed}"


def _by_words(settings: Settings) -> dict[_Words, tuple[str, str]]:
    """Contestant and text of each setting."""
    known: dict[_Words, tuple[str, str]] = {}
    for name, text in ((name, text) for name, own in settings.items() for text in own):
        other, _ = known.setdefault(frozenset(text.split()), (name, text))
        if other != name:
            raise UserError(f"{other} and {name} have the same setting, {text!r}: leave one out")
    return known


def _said_most(known: Iterable[_Words], given: Set[str]) -> list[_Words]:
    """Those whose words are all in `given`, without those that another one of them has all of."""
    all_in = [words for words in known if words <= given]
    return [words for words in all_in if not any(words < other for other in all_in)]


def _wanted(known: Iterable[_Words], found: Set[_Run]) -> set[_Run]:
    """The runs that all settings need to have equally many: each on its own network, or on all that
    occur, with all seeds that occur.
    """
    nets = {net for words, net, _ in found if not _own_net(words)}
    seeds = {seed for _, _, seed in found}
    return {
        (words, net, seed)
        for words in known
        for own in [_own_net(words)]
        for net in ({own} if own else nets or {""})
        for seed in seeds or {None}
    }


def _own_net(words: _Words) -> str:
    return values_of([*words]).get("net", "")


def best_final(trials: Iterable[Trial]) -> Trial:
    """The baselines' trial of the highest final accuracy. Raises `UserError` without a baseline."""
    own = [trial for trial in trials if trial.algo == _BASELINE]
    if not own:
        raise UserError(
            f"targets are set by a baseline, and no contestant has algo={_BASELINE}: add one"
        )
    return max(own, key=lambda trial: trial.final)


def final_targets(accuracies: Iterable[float]) -> dict[float, float]:
    """By points below the median of these final accuracies, of the tuned baseline's seeds.

    Raises `UserError` where that is so low that a target would be 0 or less.
    """
    final = statistics.median(accuracies)
    targets = {points: round(final - points / 100, 4) for points in POINTS}
    if min(targets.values()) <= 0:
        raise UserError(
            f"the tuned baseline ends at an accuracy of {final:.3f}, and a target {max(POINTS):g} "
            "points below it is none: train for longer"
        )
    return targets


def by_whom(
    trials: Iterable[Trial], *, by_algo: bool = False
) -> dict[tuple[str, str], list[Trial]]:
    """The trials of each contestant, or of each algorithm, at each network, or place. A contestant
    that has a number of workers of its own is none of its algorithm's.
    """
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        is_apart = not by_algo or "workers" in values_of(trial.words.split())
        whose = trial.contestant if is_apart else trial.algo
        groups.setdefault((whose, trial.at), []).append(trial)
    return groups


def best_of(
    groups: Mapping[tuple[str, str], Sequence[Trial]], target: float
) -> dict[tuple[str, str], tuple[Trial, Sequence[Trial]]]:
    """The best trial of each of `by_whom`, and all that it had."""
    return {
        key: (min(own, key=lambda trial: rank([trial], target)), own) for key, own in groups.items()
    }


def rank(runs: Sequence[Trial], target: float) -> tuple[float, float]:
    """Of runs of one setting: less is better. The sooner to `target`, in the median, then the more
    accurate in the end.
    """
    time_s, final = medians(runs, target)
    return time_s, -final


def medians(runs: Sequence[Trial], target: float) -> tuple[float, float]:
    """Seconds to `target`, inf for a miss, and the final accuracy."""
    time_s = statistics.median(run.time_s(target) for run in runs)
    return time_s, statistics.median(run.final for run in runs)


def setting_of(trial: Trial) -> str:
    """Its words without a network."""
    return " ".join(word for word in trial.words.split() if not word.startswith("net="))


def chosen(
    best: Mapping[tuple[str, str], tuple[Trial, Sequence[Trial]]],
    target: float,
    also: Sequence[Trial] = (),
) -> dict[str, list[str]]:
    """The settings that score, each once: those of the best trials and those of `also`, each with
    its network, and `target`.
    """
    settings: dict[str, list[str]] = {}
    trials = [*(trial for trial, _ in best.values()), *also]
    for trial in sorted(trials, key=lambda own: (own.contestant, own.at)):
        own = f"{setting_of(trial)} net={trial.net} target_accuracy={target}"
        if own not in settings.setdefault(trial.contestant, []):
            settings[trial.contestant].append(own)
    return settings


def at_edge(best: Trial, tried: Sequence[Trial]) -> dict[str, str]:
    """The numbers of `best` that are the least or the greatest that its contestant tried, "lowest"
    or "highest" by field.
    """
    own = [trial for trial in tried if trial.contestant == best.contestant]
    chosen, others = _numbers(best.words), [_numbers(trial.words) for trial in own]
    edges = {}
    for field, value in chosen.items():
        values = [other[field] for other in others if field in other]
        if len(set(values)) > 2 and value in (min(values), max(values)):
            edges[field] = "lowest" if value == min(values) else "highest"
    return edges


def evaluations_of(run: Path, status: str) -> list[MetricsRow]:
    """Those of a run that is done; none of one that diverged, which misses every target.

    Raises `UserError` where they cannot be read.
    """
    if status == "diverged":
        return []
    rows = [row for row in load_rows(run) if row.is_evaluation]
    if not rows:
        raise UserError(f"{run} has no evaluation that can be read: delete it and run it again")
    return rows


def _trial(contestant: str, words: str, net: str, run: Path, status: str) -> Trial:
    if (metric := read_summary(run).metric) is not None:
        raise UserError(
            f"{run} was scored by {metric}, and settings are chosen by accuracy: take a task with "
            "classes, and give its trials target_accuracy=... and no other target"
        )
    rows = [row for row in evaluations_of(run, status) if row.accuracy is not None]
    return Trial(contestant=contestant, words=words, net=net, folder=run, evaluations=rows)


def _numbers(words: str) -> Mapping[str, float]:
    found = {}
    for key, value in values_of(words.split()).items():
        try:
            found[key] = float(value)
        except ValueError:
            continue
    return found
