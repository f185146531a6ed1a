"""Takes from a study's records what the map needs of them, and depends on no network.

The runs of one training on all networks have the same accuracies after the same steps; that is
checked, and the runs on one network are read.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from experiments.advise.advice import BASELINE
from experiments.plan.compose import compose_config
from experiments.plan.identity import plain
from experiments.report.sections.time_against_target import POINTS
from experiments.runs.load import load_runs_and_metrics
from host.errors import UserError
from host.output import writing

PAGES = {
    "reference": "reference",
    "reference_64": "reference",
    "reference_128": "reference",
    "reference_movies": "reference_movies",
    "reference_movies_64": "reference_movies",
    "reference_movies_128": "reference_movies",
}
"""The folders of runs that are read, each with the experiment that made them."""

FILE = Path(__file__).parent / "trainings.yaml"
_NET = "none"
_LEFT_OUT = ("async",)
"""Their values depend on timing."""


def extract(records: Path, file: Path = FILE) -> None:
    """Write `file` from the folders `PAGES` in `records`. Raises `UserError` where runs of one
    training differ, or an algorithm has other fields today.
    """
    trained, environments = [], []
    for page, experiment in PAGES.items():
        runs, metrics = load_runs_and_metrics(records / page)
        runs = runs.loc[~runs.algo.isin(_LEFT_OUT)]
        _check_alike(runs, metrics)
        runs = runs.loc[runs.net == _NET]
        trained.append(_trained(runs, metrics, experiment))
        environments += [_read(folder, "environment.json") for folder in runs.folder]
    source = {
        "command": f"python -m experiments.locate --extract {records}",
        "commits": sorted({environment["git_commit"] for environment in environments}),
        "num_runs": len(environments),
        "num_dirty": sum(environment["git_dirty"] for environment in environments),
    }
    values = {"source": source, "trained": trained}
    with writing(file):
        file.write_text(
            "# What the map keeps of the reference study; `source` says who made it.\n"
            + yaml.safe_dump(values, sort_keys=False, width=100, default_flow_style=None)
        )


def _trained(runs: pd.DataFrame, metrics: pd.DataFrame, experiment: str) -> dict[str, Any]:
    first = runs.iloc[0]
    config = _config(first.folder)
    baseline = runs.loc[runs.algo == BASELINE]
    went_on = bool((baseline.steps == config["max_steps"]).all())
    final = float(baseline.validation_accuracy.median()) if went_on else None
    goals = [{"accuracy": float(config["target_accuracy"])}]
    if final is not None:
        goals += [{"accuracy": round(final - p / 100, 6), "points": p} for p in POINTS]
    curves = {str(folder): own for folder, own in _evaluations(metrics).groupby("folder")}
    seeds = sorted(int(seed) for seed in baseline.seed)
    trainings = [
        _training(own.sort_values("seed"), curves, goals, seeds, experiment)
        for _, own in runs.groupby("algo")
    ]
    composed = [own.pop("composed") for own in trainings]
    return {
        "task": str(first.task),
        "experiment": experiment,
        "workers": int(first.workers),
        "batch_size": int(config["batch_size"]),
        "eval_every": int(config["eval_every"]),
        "seeds": seeds,
        "final": final,
        "goals": goals,
        "model": composed[0]["model"],
        "optims": {one["names"]["optim"]: one["optim"] for one in composed},
        "trainings": trainings,
    }


def _training(
    runs: pd.DataFrame,
    curves: dict[str, pd.DataFrame],
    goals: list[Any],
    seeds: list[int],
    experiment: str,
) -> dict[str, Any]:
    """Of one algorithm, with the configuration that the app composes for it today."""
    config = _config(runs.folder.iloc[0])
    algo, optim = config["names"]["algo"], config["names"]["optim"]
    if list(runs.seed) != seeds or (runs.status != "completed").any():
        raise UserError(f"{algo}: its seeds {list(runs.seed)} are not all of {seeds}, completed")
    words = [f"experiment={experiment}", f"algo={algo}", f"optim={optim}", "profile=null"]
    composed = plain(compose_config([*words, f"workers={config['workers']}"]))
    _check_fields(algo, config["algo"], composed["algo"])
    _check_fields(algo, config["model"], composed["model"])
    max_steps = int(config["max_steps"])
    return {
        "composed": composed,
        "algo": algo,
        "config": composed["algo"],
        "optim": optim,
        "lr": float(config["optim"]["lr"] * config["lr_scale"]),
        "steps": [_steps(runs, curves, goal["accuracy"], max_steps) for goal in goals],
    }


def _check_fields(algo: str, recorded: dict[str, Any], today: dict[str, Any]) -> None:
    """Raise `UserError` where a field has another value today; classes may have other modules."""
    for name, value in recorded.items():
        now = today.get(name)
        if isinstance(value, dict) and isinstance(now, dict):
            _check_fields(algo, value, now)
        elif name == "_target_":
            value, now = (str(path).rsplit(".", 1)[-1] for path in (value, now))
        if not isinstance(value, dict) and value != now:
            raise UserError(f"{algo}: {name} was {value} and is {now}: train it again")


def _steps(
    runs: pd.DataFrame, curves: dict[str, pd.DataFrame], accuracy: float, max_steps: int
) -> list[float] | None:
    """Until the first evaluation that reaches it; None where a run has ended before it could."""
    steps = []
    for folder, last in zip(runs.folder, runs.steps, strict=True):
        rows = curves[str(folder)]
        reached = rows.loc[rows.accuracy >= accuracy, "step"]
        if reached.empty and last < max_steps:
            return None
        steps.append(float(reached.min()) if len(reached) else math.inf)
    return steps


def _check_alike(runs: pd.DataFrame, metrics: pd.DataFrame) -> None:
    rows = _evaluations(metrics)
    rows = rows.loc[rows.algo.isin(set(runs.algo)), ["algo", "seed", "net", "step", "accuracy"]]
    num_values = rows.groupby(["algo", "seed", "step"]).accuracy.nunique()
    if (num_values > 1).any():
        algo, seed, step = num_values.idxmax()
        raise UserError(f"{algo}, seed {seed}: networks differ in the accuracy at step {step}")


def _evaluations(metrics: pd.DataFrame) -> pd.DataFrame:
    return metrics.loc[metrics.kind == "evaluation"]


def _config(folder: str) -> dict[str, Any]:
    return yaml.safe_load((Path(folder) / "config.yaml").read_text())


def _read(folder: str, name: str) -> dict[str, Any]:
    return json.loads((Path(folder) / name).read_text())
