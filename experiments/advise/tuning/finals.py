"""The best trials of all run again, with seeds that no trial had.

A trial has one seed, and of many trials the soonest is also the luckiest. So the `NUM_FINALISTS`
best of each algorithm, or contestant, and network run with several other seeds, and the one of the
soonest median is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from experiments.advise.tuning.trials import Trial, rank, setting_of

NUM_FINALISTS = 3
Groups = Mapping[tuple[str, str], Sequence[Trial]]
"""Whose trials these are, and where: `experiments.advise.tuning.trials.by_whom`."""


def finalists(groups: Groups, target: float) -> dict[str, list[str]]:
    """The best of each group by the time to `target`, each with its network."""
    settings: dict[str, list[str]] = {}
    for own in groups.values():
        for trial in sorted(own, key=lambda trial: rank([trial], target))[:NUM_FINALISTS]:
            words = f"{setting_of(trial)} net={trial.net}"
            if words not in settings.setdefault(trial.contestant, []):
                settings[trial.contestant].append(words)
    return dict(sorted(settings.items()))


def best_in_finals(
    groups: Groups, finals: Iterable[Trial], target: float
) -> dict[tuple[str, str], tuple[Trial, Sequence[Trial]]]:
    """Of each group the trial whose `finals` are the soonest at `target`, in the median of their
    seeds, and all that it had.
    """
    runs = by_setting(finals)
    best = {}
    for key, own in groups.items():
        known = [trial for trial in own if (setting_of(trial), trial.at) in runs]
        winner = min(known, key=lambda t: rank(runs[setting_of(t), t.at], target))
        best[key] = (winner, own)
    return best


def by_setting(trials: Iterable[Trial]) -> dict[tuple[str, str], list[Trial]]:
    """The runs of each setting and place, one a seed."""
    runs: dict[tuple[str, str], list[Trial]] = {}
    for trial in trials:
        runs.setdefault((setting_of(trial), trial.at), []).append(trial)
    return runs
