"""Runs of real and of simulated workers that differ in nothing else, in pairs by their seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from experiments.report.configurations import OF_NO_ACCURACY, check_alike, check_sides
from experiments.report.statistics import MAX_PAIRS, flip_p_value
from experiments.runs.load import find_twins, load_rows, load_runs, unended
from experiments.tasks.target import Target
from experiments.training.metrics import MetricsRow, reaching
from host.bounded_yaml import read_mapping
from host.errors import UserError

if TYPE_CHECKING:  # it takes half a second
    import pandas as pd

POINTS = 2.0
"""By how many points of accuracy a target is below what tuning runs come to."""

ROUNDING = 1e-3
"""Losses that differ by no more than this part are those of one trajectory: rounding, which
training makes greater from step to step.
"""

_REAL, _SIMULATED = "gloo", "sim"
_ALIKE = ("task", "model", "net", "workers", "optim", "lr_scale")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Evaluations of one algorithm and seed, of real and of simulated workers."""

    seed: int
    real: Sequence[MetricsRow]
    simulated: Sequence[MetricsRow]

    @property
    def apart(self) -> float:
        """By what part the two losses on the validation set differ, at most; inf where one run has
        evaluations that the other has not, or one of the losses is NaN.
        """
        if [row.step for row in self.real] != [row.step for row in self.simulated]:
            return math.inf
        losses = [
            (one.validation_loss, other.validation_loss)
            for one, other in zip(self.real, self.simulated, strict=True)
        ]
        parts = [abs(real / simulated - 1) for real, simulated in losses if real and simulated]
        return math.inf if any(map(math.isnan, parts)) else max(parts, default=math.inf)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The steps to `target` of one algorithm, real and simulated, by seed: the mean worker's, where
    workers wait for nobody. A miss counts as if the evaluation after the last had reached it.
    """

    algo: str
    task: str
    model: str
    workers: int
    target: float
    real: Sequence[float]
    simulated: Sequence[float]
    num_missed: int
    num_same: int
    """Pairs of one trajectory, up to rounding."""
    apart: float

    @property
    def num_equal(self) -> int:
        """Pairs with equally many steps."""
        return sum(one == other for one, other in zip(self.real, self.simulated, strict=True))

    @property
    def is_same(self) -> bool:
        """Whether all pairs are of one trajectory."""
        return self.num_same == len(self.real)

    @property
    def p_value(self) -> float:
        """That real and simulated workers' steps are of one distribution."""
        return flip_p_value(self.real, self.simulated)

    @property
    def spread(self) -> float:
        """The standard deviation of the pairs' logarithms of real over simulated steps."""
        pairs = zip(self.real, self.simulated, strict=True)
        return statistics.stdev(math.log(real / simulated) for real, simulated in pairs)


def rule_targets(runs: Path) -> dict[str, float]:
    """The target of each algorithm: the median over its runs of the best accuracy on the validation
    set, less `POINTS`.

    Raises `UserError` where there are none, or some are not simulated, or have not ended, or those
    of an algorithm differ in more than their seeds.
    """
    table = load_runs(runs)
    _check_ended(table)
    if table.empty or set(table.backend) != {_SIMULATED}:
        raise UserError(f"{runs} has other runs than simulated ones, or none: targets are of these")
    for algo, own in table.groupby("algo"):
        check_alike(own, _ALIKE, f"the runs of {algo}", but=OF_NO_ACCURACY)
    best: dict[str, list[float]] = {}
    for algo, folder in zip(table.algo, table.folder, strict=True):
        accuracies = [row.accuracy or 0.0 for row in load_rows(folder) if row.is_evaluation]
        best.setdefault(algo, []).append(max(accuracies, default=0.0))
    targets = {
        algo: round(statistics.median(own) - POINTS / 100, 4) for algo, own in sorted(best.items())
    }
    if low := [algo for algo, target in targets.items() if target <= 0]:
        raise UserError(f"{', '.join(low)} learned nothing in {runs}: there is no target for it")
    return targets


def save_targets(targets: Mapping[str, float], file: Path) -> None:
    """Write them as YAML."""
    remark = f"by algorithm: {POINTS:g} points below the median of its best accuracies"
    file.write_text(
        f"# python -m experiments.agreement targets: {remark}\n{yaml.safe_dump(targets)}"
    )


def load_targets(file: Path) -> dict[str, float]:
    """Those of `save_targets`. Raises `UserError` for a file that holds none."""
    try:
        found = read_mapping(file.read_text())
        if not found:
            raise ValueError("it is no mapping")
        targets = {str(algo): float(value) for algo, value in found.items()}
        for value in targets.values():
            Target(value=value)
        return targets
    except (OSError, TypeError, ValueError) as error:
        raise UserError(f"{file} has no targets, such as allreduce: 0.9 ({error})") from error


def compare(runs: Path, targets: Mapping[str, float]) -> list[Compared]:
    """All algorithms of `targets`, in their order.

    Raises `UserError` where one has not the same seeds, real and simulated, and two at least, or
    more than `MAX_PAIRS`, or several runs of a seed, or one without, or one that has not ended, or
    runs that differ in more than that, or fewer than two evaluations, or some alone that say the
    mean worker's steps.
    """
    table = load_runs(runs)
    table = table.loc[table.algo.isin([*targets])]
    _check_ended(table)
    unknown = table.folder[table.seed.isna()]
    if len(unknown):
        raise UserError(f"{unknown.iloc[0]} has no seed, so that it makes no pair: leave it out")
    unsized = table.folder[table.workers.isna()]
    if len(unsized):
        raise UserError(f"{unsized.iloc[0]} does not say its number of workers: leave it out")
    if (twins := find_twins(table, ["algo", "backend", "seed"])) is not None:
        one, other = twins
        raise UserError(
            f"{one.folder} and {other.folder} are two runs of {one.algo}, backend={one.backend}, "
            f"seed {one.seed}: keep one"
        )
    found = {
        (algo, backend, int(seed)): [row for row in load_rows(folder) if row.is_evaluation]
        for algo, backend, seed, folder in zip(
            table.algo, table.backend, table.seed, table.folder, strict=True
        )
    }
    compared = []
    for algo, target in targets.items():
        made = _pairs(algo, found, runs)
        own = table.loc[table.algo == algo]
        check_sides(own, _ALIKE, f"the runs of {algo}", but=OF_NO_ACCURACY)
        first = own.iloc[0]
        compared.append(_compared(first, target, made))
    return compared


def _check_ended(table: pd.DataFrame) -> None:
    cut = table.folder[unended(table)]
    if len(cut):
        raise UserError(
            f"{cut.iloc[0]} is still running, or was interrupted, so that nobody knows what it "
            "reaches: let it end, or leave it out"
        )


def _pairs(
    algo: str, found: Mapping[tuple[str, str, int], Sequence[MetricsRow]], runs: Path
) -> list[Pair]:
    real, simulated = (
        sorted(seed for name, backend, seed in found if (name, backend) == (algo, own))
        for own in (_REAL, _SIMULATED)
    )
    if real != simulated or len(real) < 2:
        raise UserError(
            f"{runs} has not the same two seeds or more of {algo}, real and simulated: real "
            f"{_listed(real)}, simulated {_listed(simulated)}"
        )
    if len(real) > MAX_PAIRS:
        raise UserError(
            f"{runs} has {len(real)} seeds of {algo}, and the exact test takes {MAX_PAIRS} at "
            "most: give a folder with fewer"
        )
    return [
        Pair(
            seed=seed,
            real=found[algo, _REAL, seed],
            simulated=found[algo, _SIMULATED, seed],
        )
        for seed in real
    ]


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds)) or "none"


def _compared(run: pd.Series, target: float, pairs: Sequence[Pair]) -> Compared:
    """Of the pairs of one algorithm, whose runs are like `run`."""
    steps = sorted({row.step for pair in pairs for row in (*pair.real, *pair.simulated)})
    if len(steps) < 2:
        raise UserError(
            f"the runs of {run.algo} have fewer than two evaluations: none can be compared"
        )
    if len({row.mean_step is None for pair in pairs for row in (*pair.real, *pair.simulated)}) > 1:
        raise UserError(
            f"some runs of {run.algo} say how many steps the mean worker had done, and others do "
            "not: run all of them by the same commit"
        )
    missed = 2 * steps[-1] - steps[-2]  # the evaluation after the last
    reached = [[_steps(own, target) for own in (pair.real, pair.simulated)] for pair in pairs]
    apart = [pair.apart for pair in pairs]
    return Compared(
        algo=run.algo,
        task=run.task,
        model=run.model,
        workers=int(run.workers),
        target=target,
        real=[missed if real is None else real for real, _ in reached],
        simulated=[missed if simulated is None else simulated for _, simulated in reached],
        num_missed=sum(own is None for both in reached for own in both),
        num_same=sum(one <= ROUNDING for one in apart),
        apart=max(apart),
    )


def _steps(rows: Sequence[MetricsRow], target: float) -> float | None:
    row = reaching(rows, Target(value=target))
    return None if row is None else row.steps_done
