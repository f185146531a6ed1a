"""Conditions that change over time: a step function, written in full or read from a trace."""

import csv
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from netsim.conditions.link import LINK_FIELDS, check_keys, check_number
from netsim.conditions.periods import SHORTEST_S, period_number

TRACES = Path(__file__).with_name("traces")
TRACE_COLUMNS = ("time_s", "rate_mbit", "delay_ms")


@dataclass(frozen=True, kw_only=True)
class Timetable:
    """A step function of time; from 0 to its first step it overrides nothing.

    Args:
        steps: (at_s, overrides of a link), in order.
        period_s: after this time it begins again; None: its last step lasts for ever.
    """

    steps: tuple[tuple[float, Mapping[str, Any]], ...] = ()
    period_s: float | None = None

    def overrides(self, at_s: float) -> Mapping[str, Any]:
        """What holds at a time since training began."""
        _, num_past = self._place(at_s)
        return self.steps[num_past - 1][1] if num_past else {}

    def next_change_s(self, at_s: float) -> float | None:
        """When the next step comes after a time; None: never."""
        period, num_past = self._place(at_s)
        if num_past < len(self.steps):
            return self._step_s(period, self.steps[num_past][0])
        if not self.steps or self.period_s is None:
            return None
        return self._step_s(period + 1, self.steps[0][0])

    def _place(self, at_s: float) -> tuple[int, int]:
        """The period that a time is in, and how many of its steps have come until then."""
        period = 0 if self.period_s is None else period_number(at_s, 0.0, self.period_s)
        return period, bisect_right(
            self.steps, at_s, key=lambda step: self._step_s(period, step[0])
        )

    def _step_s(self, period: int, step_s: float) -> float:
        """When a step comes, of a period."""
        return step_s if self.period_s is None else period * self.period_s + step_s


def from_schedule(schedule: Sequence[Mapping[str, Any]]) -> Timetable:
    """A list of {at_s: 10, rate_mbit: 5, ...} as a timetable.

    Raises:
        ValueError: for unknown keys, values that no link has, or steps that are not in order.
    """
    steps = []
    for entry in schedule:
        values = dict(check_keys("A step of schedule", entry, ("at_s", *LINK_FIELDS)))
        if "at_s" not in values:
            raise ValueError(f"A step of schedule needs at_s, in seconds: {entry!r} has none.")
        check_number("at_s", at_s := values.pop("at_s"))
        if not values:
            raise ValueError(f"The step of schedule at at_s={at_s} changes nothing: add a value.")
        steps.append((at_s, values))
    for (earlier_s, _), (later_s, _) in pairwise(steps):
        if later_s <= earlier_s:
            raise ValueError(
                f"The steps of schedule overlap: at_s={later_s} follows at_s={earlier_s}; "
                f"write them in order, each later than the one before."
            )
    return Timetable(steps=tuple(steps))


def from_trace(path: str | os.PathLike[str]) -> Timetable:
    """A CSV of time_s, rate_mbit and delay_ms as a timetable that repeats.

    Empty lines and those that begin with # are skipped. The first row is at 0 s. The last row tells
    when the trace ends and begins again; its other values are not used.

    Args:
        path: of the file; one that does not exist is looked for among this package's traces.

    Raises:
        ValueError: if there is no such file, or its content is not of this form.
    """
    path = os.fspath(path)
    file = next((file for file in (Path(path), TRACES / path) if file.is_file()), None)
    if file is None:
        raise ValueError(
            f"There is no trace {path!r}, neither here nor in netsim/conditions/traces."
        )
    table = _table(file, path)
    if len(table) < 3 or tuple(table[0]) != TRACE_COLUMNS:
        raise ValueError(
            f"The trace {path!r} has to have the header {','.join(TRACE_COLUMNS)} and two rows "
            f"or more."
        )
    try:
        rows = [(float(time_s), float(rate), float(delay)) for time_s, rate, delay in table[1:]]
    except ValueError as error:
        raise ValueError(
            f"The trace {path!r} has a row that is not three numbers: {error}."
        ) from error
    times_s = [row[0] for row in rows]
    for time_s in times_s:
        check_number(f"time_s of the trace {path!r}", time_s)
    if times_s[0] != 0 or any(later <= earlier for earlier, later in pairwise(times_s)):
        raise ValueError(f"The times of the trace {path!r} have to begin at 0 and to increase.")
    num_rows = len(rows) - 1
    if times_s[-1] < num_rows * SHORTEST_S * (1 - 1e-9):  # but for rounding
        raise ValueError(
            f"The trace {path!r} changes too often, {num_rows} times in {times_s[-1]:g} s: leave "
            f"rows at least {SHORTEST_S:g} s apart on the mean."
        )
    steps = tuple((time_s, {"rate_mbit": r, "delay_ms": d}) for time_s, r, d in rows[:-1])
    return Timetable(steps=steps, period_s=times_s[-1])


def _table(file: Path, said: str) -> list[list[str]]:
    """All rows that are no remarks, also as spreadsheets write them: with a mark of the encoding in
    front, spaces after commas, rows of commas alone.
    """
    try:
        with file.open(newline="", encoding="utf-8-sig") as lines:
            kept = [line for line in lines if not line.startswith("#")]
    except UnicodeDecodeError as error:
        raise ValueError(f"The trace {said!r} is no text of UTF-8: save it as CSV.") from error
    rows = [[cell.strip() for cell in row] for row in csv.reader(kept)]
    return [row for row in rows if any(row)]
