"""Tells a run to a tracker, in a process of its own, since trackers leave threads behind:
`python -m tests.experiments.runs.tell TRACKER FOLDER`. Prints what MLflow has of it.
"""

import json
import os
import sys
from pathlib import Path

from experiments.runs.summary import Summary
from experiments.runs.trackers.tracker import TrackedRun, Tracking
from experiments.training.metrics import MetricsRow

ROWS = [
    MetricsRow(kind="step", step=5, time_s=0.5, loss=1.5, bytes_sent=100),
    MetricsRow(kind="evaluation", step=5, time_s=0.5, accuracy=0.25),
    MetricsRow(kind="step", step=10, time_s=1.25, loss=0.5, bytes_sent=200),
    MetricsRow(kind="evaluation", step=8, time_s=1.25, accuracy=0.5),
]
"""The last is of workers that wait for nobody: one of them has done fewer steps."""


def tell(name: str, folder: Path) -> None:
    """Two rows at once, and two later."""
    folder.mkdir()
    os.chdir(folder.parent)
    config = {"algo": {"interval": 4}, "seed": 0}
    tracking = Tracking(name, TrackedRun(folder=folder, config=config, rows=ROWS[:2], began_s=1e9))
    for row in ROWS[2:]:
        tracking.log(row)
    tracking.finish(Summary(status="completed", steps=10, final_accuracy=0.75))


def of_mlflow() -> dict[str, object]:
    """What its store has, as another client reads it."""
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("relaxlab")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    losses = client.get_metric_history(run.info.run_id, "loss")
    return {
        "status": run.info.status,
        "name": run.info.run_name,
        "params": run.data.params,
        "final_accuracy": run.data.metrics["final_accuracy"],
        "losses": sorted([m.step, m.value, m.timestamp] for m in losses),
    }


if __name__ == "__main__":
    tell(sys.argv[1], Path(sys.argv[2]))
    if "MLFLOW_ALLOW_FILE_STORE" in os.environ:
        print(json.dumps(of_mlflow()))
