"""Which learning rates were tried, and which of them was the best."""

from __future__ import annotations

import pandas as pd

from experiments.report.cells import leading, outcomes, said_of
from experiments.report.data import ReportData
from experiments.report.phrases import kinds, sentence
from experiments.report.results_table import COMPARABLE
from experiments.report.section import PageTable, Section
from experiments.report.statistics import best_by_steps
from host.words import counted, listed

TITLE = "Learning rates"

_RATE = r" (lr_scale|optim\.lr)=\S+"
"""What the name of a setting says of its learning rate."""
_HEADERS = ("reached the target", "steps to accuracy", "validation accuracy")
_NUMBERS = ["runs", "missed", "steps_to_accuracy", "validation_score"]

Rates = tuple[float, ...]


def section(data: ReportData) -> Section:
    """For each algorithm that was run with several, the best; whether it was the last one tried."""
    table = data.table.dropna(subset=["learning_rate"])
    table = table.assign(name=table["name"].str.replace(_RATE, "", regex=True))
    best = _best(table)
    if best.empty:
        return Section(
            finding="No algorithm was run with several learning rates: whether another one would "
            "be better for it is not in these runs."
        )
    pairs = list(zip(best.best, best.tried, strict=True))
    cells = leading(best) | {
        "learning rates tried": [_said(tried) for _, tried in pairs],
        "best": [_said(rates) + _end(rates, tried) for rates, tried in pairs],
    }
    numbers = best.assign(best=best.best.map(_said), tried=best.tried.map(_said))
    page = PageTable(
        caption=said_of(
            best,
            "The best learning rate of those tried: that with which the fewest seeds miss the "
            "target, then the median run takes the fewest steps to it; all that tie. Where every "
            "median run misses, that of the best validation accuracy in the end.",
        ),
        cells=cells | outcomes(best, _HEADERS),
        numbers=numbers.loc[:, [*COMPARABLE, "optim", "name", "tried", "best", *_NUMBERS]],
    )
    return Section(
        finding=" ".join(_finding(mark, rows) for mark, rows in kinds(best)),
        notes=_untuned(table, best),
        tables={"learning_rates": page},
    )


def _best(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each algorithm of a situation that has several rates: the setting with the best
    one, or one of them, with all rates that were "tried" and all that are "best", in ascending
    order.
    """
    found = {}
    for _, group in table.dropna(subset=["reached"]).groupby(
        [*COMPARABLE, "optim", "name"], dropna=False
    ):
        tried = _rates(group)
        if len(tried) > 1:
            best = best_by_steps(group)
            found[(group if best.empty else best).index[0]] = (_rates(best), tried)
    chosen = table.loc[sorted(found)]
    both = [found[index] for index in chosen.index]
    return chosen.assign(best=[best for best, _ in both], tried=[tried for _, tried in both])


def _rates(settings: pd.DataFrame) -> Rates:
    return tuple(sorted(set(settings.learning_rate)))


def _said(rates: Rates) -> str:
    """Such as "0.03, 0.1"; "none"."""
    return ", ".join(f"{rate:g}" for rate in rates) or "none"


def _end(best: Rates, tried: Rates) -> str:
    """Such as " (the highest)", where there is a best rate, and none has a lower and a higher one
    beside it.
    """
    if not best or set(best) & set(tried[1:-1]):
        return ""
    ends = {tried[0]: "the lowest", tried[-1]: "the highest"}
    return f" ({' and '.join(ends[rate] for rate in best)})"


def _finding(mark: str, best: pd.DataFrame) -> str:
    without = listed(sorted(set(best.loc[best.best.map(len) == 0, "name"])))
    best = best.loc[best.best.map(len) > 0]
    said = f"no learning rate led {without} to the target or to a score" if without else ""
    if best.empty:
        return sentence([said], mark)
    at_end = [bool(_end(*both)) for both in zip(best.best, best.tried, strict=True)]
    if any(at_end):
        part = (
            f"the best learning rate is the lowest or highest tried in {sum(at_end)} of "
            f"{counted(len(best), 'case')}, so another may be better still: "
            f"{listed(sorted(set(best.loc[at_end, 'name'])))}"
        )
    else:
        part = (
            "the best learning rate has a lower and a higher one beside it in "
            f"{'all ' if len(best) > 1 else ''}{counted(len(best), 'case')}"
        )
    return sentence([part, *filter(None, [said])], mark)


def _untuned(table: pd.DataFrame, best: pd.DataFrame) -> list[str]:
    others = sorted(set(table["name"]) - set(best["name"]))
    return [f"Run with one learning rate only: {', '.join(others)}."] if others else []
