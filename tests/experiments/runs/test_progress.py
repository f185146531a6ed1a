"""What a log file says of a run."""

from types import SimpleNamespace

from rich.console import Console

from experiments.runs import progress
from experiments.runs.progress import PlainProgress
from experiments.training.metrics import MetricsRow


def test_the_time_that_is_left_is_by_the_steps_since_the_run_went_on(monkeypatch, capsys):
    clock_s = iter([100.0, 105.0, 110.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock_s)))
    view = PlainProgress(Console(), "allreduce on wan", 500, "accuracy")
    view.show(MetricsRow(kind="evaluation", step=400, time_s=1.0, accuracy=0.5))
    view.show(MetricsRow(kind="step", step=405, time_s=2.0, loss=1.0))
    view.show(MetricsRow(kind="evaluation", step=410, time_s=3.0, accuracy=0.6))
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("ETA -")
    assert second.endswith("ETA 90 s")
