"""Every figure of a report, drawn: no text is cut off, and none lies on another."""

from itertools import combinations

import matplotlib.text
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from experiments.report.data import ReportData
from experiments.report.sections import SECTIONS, timeline
from tests.experiments.recorded import ALGOS, write_run, write_study, write_trace

NAMES = {
    *("time_to_accuracy", "accuracy_over_time", "accuracy_over_steps", "accuracy_over_bytes"),
    *("best_over_networks", "scaling", "performance_profile", "timeline", "time_against_target"),
}


def figures(folder):
    study = ReportData.load(folder)
    sections = [module.section(study) for module in SECTIONS]
    return {name: figure for section in sections for name, figure in section.figures.items()}


def texts(figure):
    """What all texts that are seen say, and their boxes in pixels."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    seen = set(figure.findobj(matplotlib.text.Text)) - _undrawn_ticks(figure)
    seen = [text for text in seen if text.get_visible() and text.get_text().strip()]
    return [(text.get_text(), text.get_window_extent(renderer)) for text in seen]


def _undrawn_ticks(figure):
    """Labels of ticks beyond their axis's limits exist, and are not drawn."""
    axes = [axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)]
    drawn = {tick for axis in axes for tick in axis._update_ticks()}
    made = {tick for axis in axes for tick in (*axis.majorTicks, *axis.minorTicks)}
    return {label for tick in made - drawn for label in (tick.label1, tick.label2)}


def check(figure, name):
    boxes = texts(figure)
    width, height = figure.get_size_inches() * figure.dpi
    for text, box in boxes:
        is_inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1
        assert is_inside, f"{name}: {text!r} is cut off"
    for (text, box), (other, its) in combinations(boxes, 2):
        across = min(box.x1, its.x1) - max(box.x0, its.x0)
        along = min(box.y1, its.y1) - max(box.y0, its.y0)
        assert across <= 1 or along <= 1, f"{name}: {text!r} lies on {other!r}"


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


def test_the_timeline_is_of_a_step_of_median_length(tmp_path):
    write_trace(tmp_path, num_workers=1, num_steps=4, step_us=20_000.0)
    step = timeline.typical_step(timeline.load_trace(tmp_path / "trace.json"))
    assert step.attrs["length_s"] == pytest.approx(0.02)
    computed = step[step.lane == timeline.COMPUTE]
    assert computed["name"].tolist() == ["forward", "backward", "wait", "optimizer"]
    assert computed.start_s.tolist() == pytest.approx([0, 0.004, 0.012, 0.018])


def test_a_trace_that_cannot_be_read_is_named(tmp_path):
    write_run(tmp_path / "run")
    (tmp_path / "run" / "trace.json").write_text('{"traceEvents": [')
    section = timeline.section(ReportData.load(tmp_path))
    assert not section.figures and "trace.json cannot be read" in section.notes[0]


def test_traces_are_found_where_they_are_written():
    trace = pytest.importorskip("experiments.training.trace")
    assert (timeline.TRACE, timeline.COMPUTE) == (trace.TRACE, trace.COMPUTE)
