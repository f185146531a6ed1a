"""The table of all trials of a study, as Markdown: what was chosen, and what lies at an edge."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from experiments.advise.tuning.finals import by_setting
from experiments.advise.tuning.trials import Trial, at_edge, medians, setting_of
from experiments.plan.overrides import values_of
from host import markdown
from host.words import counted, significant

_NOT_TUNED = {"algo", "profile", "net", "optim", "workers"}

Best = Mapping[tuple[str, str], tuple[Trial, Sequence[Trial]]]
_Row = tuple[str, str, dict[str, str], float]
"""A contestant, a setting of it, its cells by network, and its final accuracy."""


def page(best: Best, target: float, where: str = "networks", finals: Sequence[Trial] = ()) -> str:
    """What was chosen for each contestant, or algorithm, and network, or whatever `where` calls it;
    which chosen values are the lowest or highest tried; the medians of those that ran again; and
    every trial with its times. `target` is that of the choice.
    """
    nets = sorted({net for _, net in best})
    runs = by_setting(finals)
    seeds = max(map(len, runs.values()), default=1)
    then = f", then {seeds} others for the best" if runs else ""
    return "\n\n".join(
        [
            f"Settings by the time to {target:g} on the examples that tune: one seed a trial"
            f"{then}.",
            _chosen(best, where),
            f"Numbers that are the lowest or the highest of those tried, for so many {where}:",
            _edges(best, where),
            *(
                [
                    f"The best trials run again with {seeds} other seeds: the median seconds, in "
                    "brackets how many missed. A star marks the chosen one.",
                    _again(best, nets, target, runs),
                ]
                if runs
                else []
            ),
            "All trials: seconds to the target. A star marks the chosen one.",
            _all(best, nets, target),
            "",
        ]
    )


def _setting(trial: Trial) -> str:
    values = values_of(trial.words.split())
    return ", ".join(f"{key}={value}" for key, value in values.items() if key not in _NOT_TUNED)


def _chosen(best: Best, where: str) -> str:
    nets: dict[tuple[str, str], list[str]] = {}
    for (_, net), (trial, _) in sorted(best.items()):
        nets.setdefault((trial.contestant, _setting(trial)), []).append(net)
    rows = [[contestant, ", ".join(own), setting] for (contestant, setting), own in nets.items()]
    return markdown.table(["contestant", where, "chosen"], rows)


def _edges(best: Best, where: str) -> str:
    found = Counter(
        (trial.contestant, field, edge)
        for trial, tried in best.values()
        for field, edge in at_edge(trial, tried).items()
        if field not in _NOT_TUNED
    )
    rows = [[*key, str(number)] for key, number in sorted(found.items())]
    with_one = {contestant for contestant, _, _ in found}
    known = {trial.contestant for trial, _ in best.values()}
    told = f"{len(with_one)} of {counted(len(known), 'contestant')} have one."
    return f"{markdown.table(['contestant', 'field', 'is the', where], rows, 'lllr')}\n\n{told}"


def _all(best: Best, nets: Sequence[str], target: float) -> str:
    by_setting: dict[tuple[str, str], dict[str, Trial]] = {}
    stars = [trial for trial, _ in best.values()]
    for _, tried in best.values():
        for trial in tried:
            by_setting.setdefault((trial.contestant, _setting(trial)), {})[trial.at] = trial
    rows = []
    for (contestant, setting), own in sorted(by_setting.items()):
        cells = {
            net: _cell([trial], target, is_chosen=any(trial is star for star in stars))
            for net, trial in own.items()
        }
        rows.append((contestant, setting, cells, next(iter(own.values())).final))
    return _by_network(rows, nets)


def _again(
    best: Best, nets: Sequence[str], target: float, runs: Mapping[tuple[str, str], list[Trial]]
) -> str:
    chosen = {(setting_of(trial), trial.at) for trial, _ in best.values()}
    rows: dict[str, _Row] = {}
    for key, own in sorted(runs.items(), key=lambda of: (of[1][0].contestant, of[0])):
        setting, net = key
        final = medians(own, target)[1]
        row = rows.setdefault(setting, (own[0].contestant, _setting(own[0]), {}, final))
        row[2][net] = _cell(own, target, is_chosen=key in chosen)
    return _by_network([*rows.values()], nets)


def _by_network(rows: Sequence[_Row], nets: Sequence[str]) -> str:
    headers = ["contestant", "setting", *nets, "final accuracy"]
    cells = [
        [contestant, setting, *(own.get(net, "-") for net in nets), f"{final:.4f}"]
        for contestant, setting, own, final in rows
    ]
    return markdown.table(headers, cells, "ll" + "r" * (len(nets) + 1))


def _cell(runs: Sequence[Trial], target: float, *, is_chosen: bool) -> str:
    """Of the runs of a setting on a network."""
    time_s, _ = medians(runs, target)
    missed = sum(math.isinf(run.time_s(target)) for run in runs)
    said = "missed" if math.isinf(time_s) else significant(time_s)
    if missed and math.isfinite(time_s):
        said += f" (missed {missed}/{len(runs)})"
    return f"{said} *" if is_chosen else said
