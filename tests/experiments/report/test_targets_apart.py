"""Targets of which six digits are equal, and reports that keep them apart."""

from experiments.report.data import ReportData
from experiments.report.sections import time_to_accuracy
from experiments.tasks.target import Target
from tests.experiments.recorded import write_run


def test_targets_that_differ_beyond_the_sixth_digit_are_two_and_told_apart(tmp_path):
    for name, value in (("a", 0.31234561), ("b", 0.31234569), ("c", 0.4)):
        write_run(tmp_path / name, target=Target(metric="loss", value=value))
    data = ReportData.load(tmp_path)
    told = ["loss 0.31234561", "loss 0.31234569", "loss 0.4"]
    assert data.table.target.tolist() == told and data.table.runs.tolist() == [1, 1, 1]
    assert time_to_accuracy.section(data).tables["time_to_accuracy"].cells["target"] == told


def test_a_target_that_is_one_has_six_digits(tmp_path):
    for seed in range(2):
        write_run(tmp_path / str(seed), seed=seed, target=Target(metric="loss", value=0.31234561))
    assert ReportData.load(tmp_path).table.target.tolist() == ["loss 0.312346"]
