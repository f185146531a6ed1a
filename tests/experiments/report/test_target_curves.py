"""The figure of time against target: its lines, where they end, and their names."""

import numpy as np
import pytest

from experiments.report.data import MAX_LINES, ReportData
from experiments.report.sections import time_against_target
from experiments.runs.load import load_metrics
from tests.experiments.recorded import NETS, write_run, write_study

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
                there = run.loc[run.accuracy >= target, "time_s"]
                is_miss = there.empty or name in BROKEN
                times.append(np.inf if is_miss else there.iloc[0])
            assert seconds == pytest.approx(np.median(times)), (net, algo)


def test_no_line_goes_beyond_where_a_run_ended_at_its_target(tmp_path):
    write_run(tmp_path / "allreduce", "allreduce")
    write_run(tmp_path / "bytegrad", "bytegrad", num_rows=9)  # at its target
    study = ReportData.load(tmp_path)
    [panel] = time_against_target.section(study).figures["time_against_target"].axes
    longest = study.evaluations.loc[study.evaluations.folder.str.endswith("/bytegrad")]
    for line in panel.lines:
        if len(line.get_xdata()) > 2:
            assert max(line.get_xdata()) <= longest.score.max()
