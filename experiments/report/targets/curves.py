"""The curves of all runs: each sequence of steps, seconds, scores or MB that occurs, once.

Simulated runs often share a training and differ in their clocks alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from experiments.report.data import ReportData
from experiments.report.statistics import Array

AXES = {"step": 1.0, "time_s": 1.0, "score": 1.0, "bytes_sent": 1e-6}
"""Columns of evaluations, and what each is multiplied by."""


@dataclass(frozen=True)
class Curves:
    """The evaluations of each run, by its row in `ReportData.runs`.

    Args:
        sequences: those that occur, in the order of `AXES`.
        ids: of each of `AXES`, which sequence a run has.
    """

    sequences: list[Array]
    ids: dict[str, list[int]]

    @classmethod
    def of(cls, data: ReportData) -> Curves:
        """Those of all runs; a run without an evaluation has sequences without a number."""
        numbers = {
            name: data.evaluations[name].to_numpy(float, na_value=np.nan) * factor
            for name, factor in AXES.items()
        }
        rows = data.evaluations.groupby("folder", sort=False).indices
        of_runs = [rows.get(folder, np.empty(0, dtype=int)) for folder in data.runs.folder]
        known: dict[bytes, int] = {}
        sequences: list[Array] = []
        ids: dict[str, list[int]] = {name: [] for name in AXES}
        for name, own in product(AXES, of_runs):
            sequence = numbers[name][own]
            found = known.setdefault(sequence.tobytes(), len(sequences))
            if found == len(sequences):
                sequences.append(sequence)
            ids[name].append(found)
        return cls(sequences, ids)

    def get(self, name: str, run: int) -> Array:
        """One of `AXES` of a run."""
        return self.sequences[self.ids[name][run]]

    def numbers(self) -> dict[str, Array]:
        """All sequences, one behind the other, by the axis that has them first."""
        found, begin = {}, 0
        for name, ids in self.ids.items():
            end = max([begin, *(k + 1 for k in ids)])
            found[name] = np.concatenate([np.empty(0), *self.sequences[begin:end]])
            begin = end
        return found

    def described(self) -> dict[str, Any]:
        """Which of `numbers` each sequence has, and each run."""
        return {"lengths": [len(sequence) for sequence in self.sequences], "ids": self.ids}
