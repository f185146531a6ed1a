"""Every figure of a report, drawn: no text is cut off, and none lies on another."""

import math
import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from experiments.report.data import ReportData
from experiments.report.figures.names import log_ticks, narrow, spread
from experiments.report.sections import (
    SECTIONS,
    best_over_networks,
    performance_profile,
    scaling,
    time_against_target,
    time_to_accuracy,
    timeline,
    way_to_accuracy,
)
from tests.experiments.legible import check, check_panels, texts
from tests.experiments.recorded import ALGOS, NETS, write_run, write_study, write_trace

NAMES = {
    *("time_to_accuracy", "accuracy_over_time", "accuracy_over_steps", "accuracy_over_bytes"),
    *("best_over_networks", "scaling", "time_over_workers", "performance_profile", "timeline"),
    "time_against_target",
}


def figures(folder):
    study = ReportData.load(folder)
    sections = [module.section(study) for module in SECTIONS]
    return {name: figure for section in sections for name, figure in section.figures.items()}


def test_the_figures_of_a_study(tmp_path):
    write_study(tmp_path)
    for algo in ALGOS:
        for seed in range(3):
            write_run(tmp_path / f"16_{algo}{seed}", algo, seed=seed, workers=16)
    for algo in ("torch_ddp", "bytegrad"):
        write_trace(tmp_path / f"{algo}_wan_s0", num_workers=6)
    drawn = figures(tmp_path)
    assert drawn.keys() == NAMES
    for name, figure in drawn.items():
        check(figure, name)
        check_panels(figure, name)


@pytest.mark.parametrize("fields", [{}, {"status": "failed", "num_rows": 3}, {"limit": 0.5}])
def test_the_figures_of_one_run(tmp_path, fields):
    write_run(tmp_path / "run", "torch_ddp_powersgd", **fields)
    write_trace(tmp_path / "run")
    drawn = figures(tmp_path)
    assert drawn.keys() >= {"accuracy_over_time", "timeline"}
    for name, figure in drawn.items():
        check(figure, name)


def test_the_figures_of_simulated_beside_measured_runs_and_of_long_names(tmp_path):
    for backend in ("sim", "gloo"):
        for seed in range(3):
            for bits in range(3):
                options = {"bits": bits, "matrix_approximation_rank": 4 - bits, "warm": bits == 1}
                folder = tmp_path / f"{backend}{seed}{bits}"
                write_run(folder, "bytegrad", seed=seed, backend=backend, options=options)
            write_run(tmp_path / f"a{backend}{seed}", seed=seed, backend=backend, net="lan_1g")
    for name, figure in figures(tmp_path).items():
        check(figure, name)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """A simulated study whose networks share trainings: 14 algorithms, a third of which miss."""
    root = tmp_path_factory.mktemp("many")
    for net in ("slow_tcp", "wan", "lan_1g"):
        for seed in range(3):
            for bits in range(13):
                options, limit = {"bits": bits}, 0.98 if bits < 9 else 0.8
                folder = root / f"{net}_{bits}_{seed}"
                fields = {"seed": seed, "limit": limit - 0.002 * bits, "shared_training": True}
                time_s = (10 + bits) * (1 + 0.01 * seed) * 1000 / NETS[net]
                fields["time_to_accuracy_s"] = time_s if bits < 9 else None
                write_run(folder, "bytegrad", net, options=options, backend="sim", **fields)
            folder = root / f"{net}_allreduce_{seed}"
            fields = {"backend": "sim", "time_to_accuracy_s": 40_000 / NETS[net]}
            write_run(folder, "allreduce", net, seed, **fields, shared_training=True)
    return ReportData.load(root)


def panels(section, name):
    """The panels of a figure, by the network in their titles."""
    axes = section.figures[name].axes
    return {re.search(r"networks? ([^ ,]+)", a.get_title(loc="left"))[1]: a for a in axes}


def named(axes):
    """What is written beside a panel or at its rows, without the breaks of lines."""
    words = [t.get_text() for t in (*axes.texts, *axes.get_yticklabels())]
    return {word.replace("_\n", "_").replace("\n", " ") for word in words}


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (time_to_accuracy, "time_to_accuracy"),
        (way_to_accuracy, "accuracy_over_time"),
        (time_against_target, "time_against_target"),
    ],
)
def test_places_1_to_3_and_the_baseline_stand_in_every_panel(many, module, name):
    shown = panels(module.section(many), name)
    assert list(shown) == ["lan_1g", "slow_tcp", "wan"]  # from fast to slow
    for net, axes in shown.items():
        rows = many.table.query("net == @net")
        must = set(rows.label[(rows.place <= 3) | rows.is_best_baseline])
        assert len(must) == 4 and must <= named(axes), net
        check(axes.figure, name)
        check_panels(axes.figure, name)


def test_every_algorithm_has_its_row_of_times_and_misses_stand_at_the_edge(many):
    for axes in panels(time_to_accuracy.section(many), "time_to_accuracy").values():
        assert axes.get_xscale() == "log"
        assert set(many.table.label) <= named(axes)
        edge = axes.get_xlim()[1]
        crosses = [line for line in axes.get_lines() if line.get_marker() == "x"]
        assert [list(line.get_xdata()) for line in crosses] == [[edge]] * 4
        assert Counter(text.get_text() for text in axes.texts)["missed 3/3"] == 4


def test_at_most_six_curves_over_a_logarithmic_time(many):
    for net, axes in panels(way_to_accuracy.section(many), "accuracy_over_time").items():
        assert axes.get_xscale() == "log"
        rows = many.table.loc[many.table.net == net]
        curves = {line.get_label() for line in axes.get_lines()} - {"target"}
        assert curves == {*rows.label[:5], *rows.label[rows.is_best_baseline]}
        assert len(curves) == 6


@pytest.mark.parametrize(("name", "by"), [("steps", "steps"), ("bytes", "mb")])
def test_equal_trainings_have_one_panel_over_steps_and_bytes(many, name, by):
    figure = way_to_accuracy.section(many).figures[f"accuracy_over_{name}"]
    (axes,) = figure.axes
    assert all(net in axes.get_title(loc="left") for net in ("lan_1g", "slow_tcp", "wan"))
    order = many.table.query("net == 'wan'").sort_values(f"{by}_to_accuracy", kind="stable")
    assert set(order.label[:5]) <= {line.get_label() for line in axes.get_lines()}


def test_situations_that_share_trainings_count_once_in_the_profile(many, tmp_path):
    section = performance_profile.section(many)
    assert section.finding.startswith("Simulated: of 3 situations of the same trainings, ")
    assert section.notes == ["Simulated: situations that share trainings count as one together."]
    write_study(tmp_path)  # of which two networks, whose names are as long, share trainings
    finding = performance_profile.section(ReportData.load(tmp_path)).finding
    assert finding.startswith("Of 4 situations of 3 sets of trainings, ")
    for net in ("wan", "slow_tcp"):
        for algo in ("allreduce", "bytegrad"):
            write_run(tmp_path / "own" / f"{net}_{algo}", algo, net)
    section = performance_profile.section(ReportData.load(tmp_path / "own"))
    assert section.finding.startswith("Of 2 situations, ") and section.notes == []


def test_weights_of_the_profile():
    """Two situations of one set of trainings against one of another: each set counts one half."""
    ratios = performance_profile.pd.DataFrame({"a": [1.0, 1.0, 8.0], "b": [4.0, 4.0, 1.0]})
    ratios.attrs["weights"] = {0: 0.5, 1: 0.5, 2: 1.0}
    assert performance_profile._share(ratios, 2).to_dict() == {"a": 0.5, "b": 0.5}


def test_the_map_has_a_colour_for_each_winner_and_says_by_how_much(many):
    labels = ["bytegrad bits=4", "bytegrad bits=8", "bytegrad bits=2", "allreduce"]
    colors = best_over_networks.winner_colors(labels)
    assert len(set(colors.values())) == 4
    figure = best_over_networks.section(many).figures["best_over_networks"]
    firsts = many.table.query("place == 1")
    said = " ".join(text for text, _ in texts(figure))
    for first in firsts.to_dict("records"):
        assert f"{first['speedup']:.3g}" in said
    filled = {patch.get_facecolor() for patch in figure.axes[0].patches}
    assert len(filled) == firsts.label.nunique()


def test_timelines_share_one_axis_of_time(tmp_path):
    for algo, step_us in (("allreduce", 40_000.0), ("bytegrad", 10_000.0)):
        write_run(tmp_path / algo, algo)
        write_trace(tmp_path / algo, step_us=step_us)
    figure = timeline.section(ReportData.load(tmp_path)).figures["timeline"]
    *panels, _key = figure.axes
    assert [panel.get_xlim() for panel in panels] == [(0, pytest.approx(40))] * 2


def test_time_to_accuracy_over_workers(tmp_path):
    for workers, time_s in ((2, 10.0), (8, 5.0), (16, 2.5)):
        for seed in range(3):
            fields = {"workers": workers, "seed": seed, "time_to_accuracy_s": time_s + seed}
            write_run(tmp_path / f"{workers}_{seed}", **fields)
        write_run(tmp_path / f"missed_{workers}", "bytegrad", workers=workers, limit=0.5)
    section = scaling.section(ReportData.load(tmp_path))
    assert "the time to accuracy with the most workers is 0.318 times that" in section.finding
    [axes] = section.figures["time_over_workers"].axes
    line = next(line for line in axes.get_lines() if line.get_label() == "allreduce")
    assert list(line.get_xdata()) == [2, 8, 16] and list(line.get_ydata()) == [11, 6, 3.5]
    crosses = [line for line in axes.get_lines() if line.get_marker() == "x"]
    assert [list(line.get_ydata()) for line in crosses] == [[axes.get_ylim()[1]]] * 3
    check(axes.figure, "time_over_workers")


def test_names_are_spread_in_order_and_equal_heights_by_the_alphabet():
    sizes = [0.1, 0.1, 0.2, 0.1]
    placed = spread([0.99, 0.2, 0.99, 0.99], ["c", "d", "a", "b"], sizes)
    assert [k for k, _ in placed] == [1, 2, 3, 0]
    at = dict(placed)
    assert at[0] <= 0.95 and at[1] == 0.2
    for (k, low), (j, high) in pairwise(placed):
        assert high - low >= (sizes[k] + sizes[j]) / 2 - 1e-9
    again = spread([0.99, 0.99, 0.2, 0.99], ["a", "b", "d", "c"], [0.2, 0.1, 0.1, 0.1])
    assert [height for _, height in again] == [height for _, height in placed]


def test_names_are_broken_where_a_word_ends():
    assert narrow("low_precision_decentralized", 19) == "low_precision_\ndecentralized"
    assert narrow("bytegrad bits=4, simulated", 19) == "bytegrad bits=4,\nsimulated"
    assert narrow("allreduce, plain_sgd", 19) == "allreduce,\nplain_sgd"
    assert max(map(len, narrow("x" * 50, 19).split("\n"))) == 19


@pytest.mark.parametrize(("low", "high"), [(1, 1.2), (0.3, 0.7), (5, 80), (1e-3, 1e6), (2, 2.01)])
def test_ticks_of_a_logarithmic_axis_are_few_and_inside(low, high):
    ticks = log_ticks(low, high, 6)
    assert 1 <= len(ticks) <= 6
    assert all(low * 0.999 <= tick <= high * 1.001 for tick in ticks)
    assert math.isclose(sorted(ticks)[0], ticks[0]) and np.all(np.diff(ticks) > 0)


def test_the_timeline_is_of_a_step_of_median_length(tmp_path):
    write_trace(tmp_path, num_workers=1, num_steps=4, step_us=20_000.0)
    step = timeline.typical_step(timeline.load_trace(tmp_path / "trace.json"))
    assert step.attrs["length_s"] == pytest.approx(0.02)
    computed = step[step.lane == timeline.COMPUTE]
    assert computed["name"].tolist() == ["forward", "backward", "wait", "optimizer"]
    assert computed.start_s.tolist() == pytest.approx([0, 0.004, 0.012, 0.018])


def test_a_step_of_workers_that_shared_a_gpu_is_not_drawn_over_time(tmp_path):
    for algo in ("allreduce", "bytegrad"):
        write_run(tmp_path / algo, algo, shared_gpu=algo == "bytegrad")
        write_trace(tmp_path / algo)
    section = timeline.section(ReportData.load(tmp_path))
    assert "a step of bytegrad was taken by workers that shared a GPU" in section.finding
    titles = [axes.get_title(loc="left") for axes in section.figures["timeline"].axes]
    assert "allreduce" in titles and "bytegrad" not in titles


def test_a_trace_that_cannot_be_read_is_named(tmp_path):
    write_run(tmp_path / "run")
    (tmp_path / "run" / "trace.json").write_text('{"traceEvents": [')
    section = timeline.section(ReportData.load(tmp_path))
    assert not section.figures and "trace.json cannot be read" in section.notes[0]


def test_traces_are_found_where_they_are_written():
    trace = pytest.importorskip("experiments.training.trace")
    assert (timeline.TRACE, timeline.COMPUTE) == (trace.TRACE, trace.COMPUTE)


@pytest.mark.parametrize(
    ("low", "high", "tick"), [(54.7596, 58.1, 55), (0.8412, 0.8434, 0.842), (1234.5, 1290, 1240)]
)
def test_an_axis_of_numbers_near_each_other_has_a_round_one(low, high, tick):
    assert log_ticks(low, high) == [tick]
