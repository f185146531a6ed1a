"""Many runs read back, and how far that is."""

import json
from dataclasses import asdict

import pytest

from experiments.runs.journal import line
from experiments.runs.load import READING, load_runs_and_metrics
from experiments.runs.summary import Summary
from experiments.training.metrics import MetricsRow
from host.remaining import Work


class Counted(Work):
    """Knows how often something was done."""

    num_done = 0

    def done(self, size=1.0, line=""):
        super().done(size, line)
        self.num_done += 1


@pytest.mark.parametrize(("num_runs", "num_done"), [(3, 3), (200, 100)])
def test_reading_goes_on_by_the_run_or_by_the_hundredth(num_runs, num_done, tmp_path):
    for seed in range(num_runs):
        folder = tmp_path / f"{seed:03}"
        folder.mkdir()
        summary = Summary(algo="bytegrad", status="failed", seed=seed)
        (folder / "summary.json").write_text(json.dumps(asdict(summary)))
        row = MetricsRow(kind="step", step=seed, time_s=1.0)
        (folder / "metrics.jsonl").write_text(line(row))
    work = Counted({READING: 1.0})
    runs, metrics = load_runs_and_metrics(tmp_path, work)
    assert runs["seed"].tolist() == metrics["step"].tolist() == list(range(num_runs))
    assert (work.num_done, work.share, work.left_s) == (num_done, 1.0, 0.0)
