"""MLflow: a run of the experiment "relaxlab", by MLFLOW_TRACKING_URI or MLflow's default."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mlflow import MlflowClient, get_tracking_uri
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from experiments.runs.folder_lock import HeldError, hold
from experiments.runs.summary import ENDED_EARLY, Summary
from experiments.runs.trackers.tracker import PROJECT, TrackedRun, Tracker, numbers, results
from experiments.training.metrics import MetricsRow

_STATUS = {"completed": "FINISHED", ENDED_EARLY: "KILLED"}
_MAX_PARAMS = 100  # that a request of MLflow's may have
_PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
"""Else a server that is gone would hold a run up for minutes."""
_MAKING_LIMIT_S = 120.0
"""For which a run waits while others that begin with it make the store: seconds for each."""
_DATABASE = "sqlite:///"


class MLflow:
    """A run there; one process at a time opens a local store."""

    def __init__(self, run: TrackedRun) -> None:
        for name, value in _PATIENCE.items():
            os.environ.setdefault(name, value)
        self._run = run
        with _alone(get_tracking_uri()):
            self._client = MlflowClient()
            experiment = self._experiment()
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
        except Exception:  # what was lost on the way is no reason to be at work for ever
            with suppress(Exception):
                self._terminate(summary)
            raise
        self._terminate(summary)

    def _experiment(self) -> str:
        """That of all runs; through a server, another run may make it at the same time."""
        if found := self._client.get_experiment_by_name(PROJECT):
            return found.experiment_id
        try:
            return self._client.create_experiment(PROJECT)
        except MlflowException:
            found = self._client.get_experiment_by_name(PROJECT)
            if found is None:
                raise
            return found.experiment_id

    def _terminate(self, summary: Summary) -> None:
        self._client.set_terminated(self._id, _STATUS.get(str(summary.status), "FAILED"))

    def _send(self, values: Mapping[str, float], at_ms: int, step: int) -> None:
        if not values:  # of which MLflow has no operation to wait for
            return
        metrics = [Metric(name, value, at_ms, step) for name, value in values.items()]
        sent = self._client.log_batch(self._id, metrics=metrics, synchronous=False)
        self._under_way.append(sent)


@contextmanager
def _alone(uri: str) -> Iterator[None]:
    """No other run is within at the same time, where `uri` is of a local store: MLflow makes its
    tables without a lock. Raises `TimeoutError` where others take too long.
    """
    store = _local(uri)
    with ExitStack() as stack:
        if store is not None:
            try:
                stack.enter_context(hold(store, _MAKING_LIMIT_S))
            except HeldError as error:
                took = f"in {_MAKING_LIMIT_S:g} s"
                raise TimeoutError(f"other runs have not opened {store} {took}") from error
        yield


def _local(uri: str) -> Path | None:
    """The file or the folder of a store, None of a server's."""
    if uri.startswith(_DATABASE):
        return Path(uri.removeprefix(_DATABASE))  # as MLflow reads it
    parts = urlsplit(uri)
    return Path(unquote(parts.path)).absolute() if parts.scheme in ("", "file") else None


def start(run: TrackedRun) -> Tracker:
    """Open a run."""
    return MLflow(run)
