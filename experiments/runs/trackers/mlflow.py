"""MLflow: a run of the experiment "relaxlab", by MLFLOW_TRACKING_URI or MLflow's default."""

import os
import time
from collections.abc import Mapping
from contextlib import suppress

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from experiments.runs.summary import ENDED_EARLY, Summary
from experiments.runs.trackers.tracker import PROJECT, TrackedRun, Tracker, numbers, results
from experiments.training.metrics import MetricsRow

ERRORS = (MlflowException, OSError)
_STATUS = {"completed": "FINISHED", ENDED_EARLY: "KILLED"}
_MAX_PARAMS = 100  # that a request of MLflow's may have
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Else a server that is gone would hold a run up for minutes."""


class MLflow:
    """Raises `MlflowException` where its store or server refuses."""

    def __init__(self, run: TrackedRun) -> None:
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        self._run = run
        self._client = MlflowClient()
        found = self._client.get_experiment_by_name(PROJECT)
        experiment = found.experiment_id if found else self._client.create_experiment(PROJECT)
        made = self._client.create_run(experiment, run_name=run.folder.name)
        self._id = made.info.run_id
        options = [Param(path, str(value)) for path, value in run.options().items()]
        for begin in range(0, len(options), _MAX_PARAMS):
            self._client.log_batch(self._id, params=options[begin : begin + _MAX_PARAMS])
        self._under_way = []

    def log(self, row: MetricsRow) -> None:
        """A metric for each number; a thread of MLflow's sends them."""
        at_ms = round((self._run.began_s + row.time_s) * 1000)
        self._send(numbers(row), at_ms, row.step)

    def finish(self, summary: Summary) -> None:
        """The results as metrics, the status as the run's, and its reason as a tag."""
        try:
            self._send(results(summary), round(time.time() * 1000), summary.steps or 0)
            for operation in self._under_way:
                operation.wait()
            tags = [RunTag("status", str(summary.status)), RunTag("reason", summary.reason or "")]
            self._client.log_batch(self._id, tags=tags)
        except MlflowException:  # what was lost on the way is no reason to be at work for ever
            with suppress(MlflowException):
                self._terminate(summary)
            raise
        self._terminate(summary)

    def _terminate(self, summary: Summary) -> None:
        self._client.set_terminated(self._id, _STATUS.get(str(summary.status), "FAILED"))

    def _send(self, values: Mapping[str, float], at_ms: int, step: int) -> None:
        metrics = [Metric(name, value, at_ms, step) for name, value in values.items()]
        sent = self._client.log_batch(self._id, metrics=metrics, synchronous=False)
        self._under_way.append(sent)


def start(run: TrackedRun) -> Tracker:
    """Open a run. Raises `MlflowException`."""
    return MLflow(run)
