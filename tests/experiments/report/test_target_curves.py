"""Time against target: the figure's lines, where they end, and their names; whose targets the table
has, and where nobody is first.
"""

from dataclasses import replace

import numpy as np
import pytest

from experiments.report.data import MAX_LINES, ReportData
from experiments.report.sections import time_against_target
from experiments.runs import journal
from experiments.runs.load import load_metrics, load_rows
from experiments.tasks.target import Target
from host.errors import UserError
from tests.experiments.recorded import NETS, at_target, write_run, write_study

BROKEN = {"bytegrad_wan_s1", "local_sgd_lan_1g_s2"}
"""Runs of the study that did not complete."""


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    write_study(folder)
    return folder


@pytest.fixture(scope="module")
def figure(root):
    return time_against_target.section(ReportData.load(root)).figures["time_against_target"]


def names(panel):
    return [text for text in panel.texts if text.get_text()]


def test_lines_are_medians_over_seeds_and_have_their_names(root, figure):
    evaluations = load_metrics(root).query("kind == 'evaluation'")
    table = ReportData.load(root).table
    assert len(figure.axes) == len(NETS)
    for panel in figure.axes:
        net = panel.get_title(loc="left").split()[1].rstrip(",")
        lines = [line for line in panel.lines if len(line.get_xdata()) > 2]
        assert len(lines) == len(names(panel)) <= MAX_LINES + 1
        ends = {t.get_text(): t.xy for t in names(panel)}
        assert set(table.query("net == @net and is_best_baseline").label) <= set(ends)
        for algo, (target, seconds) in ends.items():
            times = []
            for seed in range(3):
                name = f"{algo}_{net}_s{seed}"
                run = evaluations[evaluations.folder.str.endswith(f"/{name}")]
                there = at_target(run.to_dict("records"), target)
                is_miss = there is None or name in BROKEN
                times.append(np.inf if is_miss else there["time_s"])
            assert seconds == pytest.approx(np.median(times)), (net, algo)


def test_no_line_goes_beyond_where_a_run_ended_at_its_target(tmp_path):
    write_run(tmp_path / "allreduce", "allreduce")
    write_run(tmp_path / "bytegrad", "bytegrad", num_rows=9)  # at its target
    study = ReportData.load(tmp_path)
    [panel] = time_against_target.section(study).figures["time_against_target"].axes
    longest = study.evaluations.loc[study.evaluations.folder.str.endswith("/bytegrad")]
    lines = [line for line in panel.lines if len(line.get_xdata()) > 2]
    assert len(lines) == 2
    for line in lines:
        assert max(line.get_xdata()) <= longest.score.max()


def test_targets_that_were_fixed_before_the_runs_take_the_place_of_their_own(tmp_path):
    write_run(tmp_path / "allreduce", "allreduce")
    write_run(tmp_path / "bytegrad", "bytegrad")
    (tmp_path / "targets.yaml").write_text("{2.0: 0.5, 1.0: 0.6, 0.5: 0.65, 0.2: 0.68}")
    data = ReportData.load(tmp_path)
    page = time_against_target.section(data).tables["time_against_target"]
    assert list(page.numbers.other_target) == [0.5, 0.6, 0.65, 0.68]
    runs = [rows.to_dict("records") for _, rows in data.evaluations.groupby("algo")]
    soonest = min(at_target(rows, 0.65)["time_s"] for rows in runs)
    assert page.numbers.seconds.iloc[2] == pytest.approx(soonest)
    assert "fixed before these runs" in page.caption
    for unfit in ("[0.5]", "", "[" * 5000, "{1.0: .nan}", "{.inf: 0.6}", "{2.0: 85}"):
        (tmp_path / "targets.yaml").write_text(unfit)
        with pytest.raises(UserError, match="has no targets, such as"):
            ReportData.load(tmp_path)
    (tmp_path / "targets.yaml").write_text("{2.0: 0.5, 0.5: 0.65}")
    with pytest.raises(UserError, match=r"has no targets 1 and 0\.2 points below: add them"):
        ReportData.load(tmp_path)


def test_no_one_is_first_at_a_target_beyond_which_a_run_did_not_go(tmp_path):
    write_run(tmp_path / "allreduce", "allreduce")
    write_run(tmp_path / "bytegrad", "bytegrad", num_rows=8)  # at its target
    section = time_against_target.section(ReportData.load(tmp_path))
    assert section.tables["time_against_target"].cells["first"] == ["not known"] * 4
    wide = section.tables["first_over_targets"].cells
    assert wide["2 below"] == ["not known"] and wide["at all of them"] == ["-"]
    assert "no other one can be told" in section.finding
    write_run(tmp_path / "local_sgd", "local_sgd", limit=0.5)  # ends with a miss
    write_run(tmp_path / "bytegrad_on", "bytegrad", seed=1)
    assert (
        "not known"
        in time_against_target.section(ReportData.load(tmp_path))
        .tables["time_against_target"]
        .cells["first"]
    )


def test_nobody_has_missed_a_target_harder_than_that_at_which_all_ended(tmp_path):
    for algo in ("allreduce", "bytegrad"):
        write_run(tmp_path / algo, algo, num_rows=9, stop_at_target=True)
    (tmp_path / "targets.yaml").write_text("{2.0: 0.96, 1.0: 0.97, 0.5: 0.975, 0.2: 0.978}")
    section = time_against_target.section(ReportData.load(tmp_path))
    assert section.tables["time_against_target"].cells["first"] == ["not known"] * 4
    assert "no other one can be told" in section.finding


def test_at_harder_targets_a_journal_that_was_cut_short_is_no_miss(tmp_path):
    for algo in ("allreduce", "bytegrad"):
        write_run(tmp_path / algo, algo)
    file = tmp_path / "bytegrad" / "metrics.parquet"
    rows = [own for own in load_rows(file.parent) if own.step <= 60]
    (tmp_path / "bytegrad" / "metrics.jsonl").write_text(
        "".join(map(journal.line, rows)) + '{"kind": "ev'
    )
    file.unlink()
    section = time_against_target.section(ReportData.load(tmp_path))
    assert section.tables["time_against_target"].cells["first"] == ["not known"] * 4
    assert section.finding.startswith("Evaluations cannot be read beside the time")


@pytest.mark.parametrize("score", [2.0, -2.0])
def test_targets_are_easier_than_the_final_score_of_a_loss(score, tmp_path):
    for algo in ("allreduce", "bytegrad"):
        write_run(tmp_path / algo, algo, target=Target(metric="loss", value=5.0))
    data = ReportData.load(tmp_path)
    data = replace(data, table=data.table.assign(validation_score=score))
    page = time_against_target.section(data).tables["time_against_target"]
    assert list(page.numbers.other_target) == pytest.approx(
        [score + abs(score) * percent / 100 for percent in (2, 1, 0.5, 0.2)]
    )
    assert "2 above" in time_against_target.section(data).tables["first_over_targets"].cells
