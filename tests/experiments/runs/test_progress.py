"""What a log file says of a run."""

from types import SimpleNamespace

import pytest
from rich.console import Console

from experiments.runs import progress
from experiments.runs.progress import PlainProgress, one_of_several, progress_view
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


def test_one_of_several_prints_in_one_piece_and_tells_its_share_now_and_then(monkeypatch, capsys):
    clock_s = iter([10.0, 10.1, 10.4, 10.5, 11.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock_s)))
    shares = []
    with one_of_several(shares.append):
        print("begun")
        view = progress_view("allreduce on wan", 50, "accuracy")
        with view:
            for step in (1, 10, 20, 25, 50):
                view.show(MetricsRow(kind="evaluation", step=step, time_s=1.0, accuracy=0.5))
        assert capsys.readouterr().out == ""
        print("completed")
    assert capsys.readouterr().out == "begun\ncompleted\n"
    assert shares == [0.02, 0.5, 1.0]
    assert isinstance(progress_view("allreduce on wan", 50, "accuracy"), PlainProgress)


def test_what_one_of_several_printed_before_it_failed_is_printed(capsys):
    with pytest.raises(ZeroDivisionError), one_of_several():
        print("begun")
        raise ZeroDivisionError
    assert capsys.readouterr().out == "begun\n"
