"""What a report says of when runs were evaluated, and of whose models."""

import math
from dataclasses import asdict, replace

import pytest
from pyarrow import parquet

from experiments.report.data import ReportData
from experiments.report.sections import final_accuracy, time_to_accuracy
from experiments.runs import journal
from experiments.runs.load import load_rows
from tests.experiments.recorded import TARGET, at_target, write_run


def change(folder, target):
    """By how much the time of a run changes without every other evaluation, in percent."""
    rows = [asdict(row) for row in load_rows(folder) if row.is_evaluation]
    whole, *halves = (at_target(own, target)["time_s"] for own in (rows, rows[::2], rows[1::2]))
    return 100 * max(abs(half / whole - 1) for half in halves)


@pytest.mark.parametrize("target", [0.3, 0.5])  # there by the first evaluation, and by the third
def test_by_how_much_times_may_be_off_is_said(tmp_path, target):
    write_run(tmp_path / "coarse" / "run", target_accuracy=target)
    (note,) = time_to_accuracy.section(ReportData.load(tmp_path / "coarse")).notes
    percent = change(tmp_path / "coarse" / "run", target)
    assert percent > 5
    share = f"{percent:.0f} %"
    said = f"by up to {share} in the median run of a setting, allreduce, and by up to "
    assert note.endswith(f"{said}{share} in a single run.")
    write_run(tmp_path / "fine" / "run")
    assert 0 < change(tmp_path / "fine" / "run", TARGET) < 5
    assert time_to_accuracy.section(ReportData.load(tmp_path / "fine")).notes == []
    write_run(tmp_path / "missed" / "run", limit=0.5)
    assert time_to_accuracy.section(ReportData.load(tmp_path / "missed")).notes == []


def test_where_half_of_the_evaluations_miss_the_target_it_is_the_way_to_the_next(tmp_path):
    """Of nine evaluations, 10 equally long steps apart, the last alone is at the target."""
    write_run(tmp_path / "run", num_rows=9)
    values = [row.value for row in load_rows(tmp_path / "run") if row.is_evaluation]
    assert values[-2] < TARGET <= values[-1]
    (note,) = time_to_accuracy.section(ReportData.load(tmp_path)).notes
    assert note.endswith("allreduce, and by up to 12 % in a single run.")  # 90 / 80


def test_the_setting_that_is_evaluated_the_least_often_is_named(tmp_path):
    """One of five, so that the median over all runs is that of the others."""
    for algo in ("allreduce", "local_sgd", "torch_ddp", "torch_ddp_bf16"):
        for net in ("wan", "lan_1g"):
            write_run(tmp_path / f"{algo}_{net}", algo, net)
    assert time_to_accuracy.section(ReportData.load(tmp_path)).notes == []
    folder = tmp_path / "coarse"
    write_run(folder, "bytegrad", "wan", target_accuracy=0.5)
    (note,) = time_to_accuracy.section(ReportData.load(tmp_path)).notes
    share = f"{change(folder, 0.5):.0f} %"
    said = f"by up to {share} in the median run of a setting, bytegrad (network wan, "
    assert said in note


def test_steps_to_the_target_are_those_of_the_mean_worker_where_a_record_says_them(tmp_path):
    names = ("ahead", "older")
    write_run(tmp_path / "ahead", "local_sgd", lead=7.5)
    write_run(tmp_path / "older", "local_sgd")
    ahead, older = (ReportData.load(tmp_path / own).runs.steps_to_accuracy.item() for own in names)
    assert ahead == pytest.approx(older + 7.5)
    assert sorted(ReportData.load(tmp_path).runs.steps_to_accuracy) == [older, ahead]


@pytest.mark.parametrize("has_bytes", [lambda step: step > 80, lambda step: step <= 80])
def test_bytes_that_one_side_of_the_line_lacks_are_not_known(has_bytes, tmp_path):
    write_run(tmp_path / "run")
    rows = load_rows(tmp_path / "run")
    lacking = [r if has_bytes(r.step) else replace(r, bytes_sent=None) for r in rows]
    table = journal.table([asdict(row) for row in lacking])
    parquet.write_table(table, tmp_path / "run" / "metrics.parquet")
    [run] = ReportData.load(tmp_path).runs.to_dict("records")
    assert 80 < run["steps_to_accuracy"] < 90 and math.isnan(run["mb_to_accuracy"])


def test_own_models_have_a_column_where_they_were_scored(tmp_path):
    own = {"final_own_score": 0.8123, "own_score_at_target": 0.8765}
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", "local_sgd", seed=seed, **own)
        write_run(tmp_path / f"b{seed}", seed=seed)
    data = ReportData.load(tmp_path)
    table = time_to_accuracy.section(data).tables["time_to_accuracy"]
    cells = dict(
        zip(table.cells["algorithm"], table.cells["workers' own models then"], strict=True)
    )
    assert cells == {"local_sgd": "0.8765", "allreduce": "-"}
    assert "their own models' is what each scored" in table.caption
    table = final_accuracy.section(data).tables["final_accuracy"]
    assert set(table.cells["workers' own models (test)"]) == {"0.8123", "-"}
