"""Scores that are infinite, or no numbers: nobody's figure or place is lost by them."""

import math

import pytest
from pyarrow import parquet

from experiments.report.data import ReportData
from experiments.report.figures.plots import accuracy_plot
from experiments.report.sections import time_against_target
from experiments.runs import journal
from experiments.tasks.target import Target
from tests.experiments.legible import check
from tests.experiments.recorded import write_run


def write_scores(folder, algo, score):
    """A run that missed its loss, each of whose evaluations has that score."""
    write_run(folder, algo, limit=0.5, target=Target(metric="loss", value=0.2))
    rows = parquet.read_table(folder / "metrics.parquet").to_pylist()
    rows = [row | ({"score": score} if row["kind"] == "evaluation" else {}) for row in rows]
    parquet.write_table(journal.table(rows), folder / "metrics.parquet")


@pytest.mark.parametrize("over", ["time_s", "step", "bytes_sent"])
def test_infinite_scores_leave_the_figure_its_other_lines(over, tmp_path):
    write_run(tmp_path / "allreduce", target=Target(metric="loss", value=0.2))
    write_scores(tmp_path / "bytegrad", "bytegrad", math.inf)
    figure = accuracy_plot(ReportData.load(tmp_path), over)
    assert figure is not None
    check(figure, over)
    [axes] = figure.axes
    bottom, top = axes.get_ylim()
    assert bottom < 0.2 < top < 1
    assert {line.get_label() for line in axes.lines} == {"allreduce", "bytegrad", "target"}


def test_all_scores_may_be_infinite(tmp_path):
    write_scores(tmp_path / "bytegrad", "bytegrad", math.inf)
    figure = accuracy_plot(ReportData.load(tmp_path))
    assert figure is not None
    check(figure, "accuracy_over_time")


def test_a_run_whose_scores_are_no_numbers_has_missed_and_hides_nobody(tmp_path):
    write_run(tmp_path / "allreduce", target=Target(metric="loss", value=0.2))
    write_scores(tmp_path / "bytegrad", "bytegrad", math.nan)
    data = ReportData.load(tmp_path)
    assert not data.runs.is_unread.any()
    section = time_against_target.section(data)
    assert section.tables["time_against_target"].cells["first"] == ["allreduce"] * 4
