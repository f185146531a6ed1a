import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib import colors

from experiments.advise import surface_plot as drawing
from experiments.advise.axes import Axes, parse_axis
from experiments.advise.candidates import Field
from experiments.advise.grid import Grid, spread_out
from experiments.advise.surface import check_grid, compute, sentences
from experiments.advise.surface_plot import surface_plot
from experiments.report.statistics import prediction_error
from experiments.tasks.target import Target
from host.errors import UserError
from netsim.conditions.condition import NetworkCondition
from tests import app
from tests.experiments.legible import check

RATES = np.geomspace(10, 1000, 5)
DELAYS = np.geomspace(1, 100, 3)


def grid(**times_s):
    """Times as functions of rate and delay, equal for three seeds."""
    mesh = np.meshgrid(RATES, DELAYS, indexing="ij")
    stacked = {
        algo: np.stack([np.broadcast_to(np.asarray(of(*mesh), dtype=float), (5, 3))] * 3)
        for algo, of in times_s.items()
    }
    return Grid(rates_mbit=RATES, delays_ms=DELAYS, times_s=stacked)


def never(rate, delay):
    return math.inf


def test_a_line_lies_where_two_algorithms_take_equally_long():
    # Powers of the rate are straight lines on logarithmic axes: equal at 150 Mbit/s.
    lines = grid(small=lambda r, d: 2.0, full=lambda r, d: 300 / r).crossings(1)
    assert [(line.before, line.after) for line in lines] == [("small", "full")]
    assert lines[0].rate_mbit == pytest.approx(150, rel=0.01)


def test_lines_between_three_algorithms_come_in_order():
    lines = grid(a=lambda r, d: r / 10, b=lambda r, d: 3 + 0 * r, c=lambda r, d: 900 / r).crossings(
        0
    )
    assert [(line.before, line.after) for line in lines] == [("a", "b"), ("b", "c")]
    assert [line.rate_mbit for line in lines] == pytest.approx([30, 300], rel=0.01)


def test_without_a_change_there_is_no_line():
    assert grid(a=lambda r, d: 1.0, b=lambda r, d: 2.0).crossings(0) == []


def test_who_misses_is_never_first_and_the_line_lies_between_the_points():
    missing = grid(a=lambda r, d: np.where(r < 100, 1.0, math.inf), b=lambda r, d: 3.0, c=never)
    assert missing.winners() == {"a": 6, "b": 9}
    assert [missing.first(i, 0) for i in range(5)] == ["a", "a", "b", "b", "b"]
    (line,) = missing.crossings(0)
    assert RATES[1] < line.rate_mbit < RATES[2]
    assert missing.medians_s["c"].min() == math.inf


def test_where_nobody_reaches_the_target_nobody_is_first():
    nobody = grid(a=never, b=never)
    assert nobody.first(0, 0) is None
    assert nobody.winners() == {}
    assert nobody.ties(0, 0) == []


def test_points_at_which_the_first_ties_are_known():
    error = prediction_error(RATES[0])
    close = grid(a=lambda r, d: 1.0, b=lambda r, d: 1 + d * error / 8, c=never)
    assert [close.ties(0, j) for j in range(3)] == [["b"], [], []]


def test_predictions_at_higher_rates_are_worse_so_more_of_them_tie():
    between = 1 + (prediction_error(RATES[0]) + prediction_error(RATES[-1])) / 2
    close = grid(a=lambda r, d: 1.0, b=lambda r, d: between)
    assert (close.ties(0, 0), close.ties(4, 0)) == ([], ["b"])


def test_the_table_has_a_row_for_each_algorithm_and_point():
    frame = grid(a=lambda r, d: 1.0, b=lambda r, d: 1.01, c=never).frame()
    assert len(frame) == 3 * 15
    here = frame[(frame.rate_mbit == RATES[0]) & (frame.delay_ms == DELAYS[0])]
    assert list(here.algo[here.is_first]) == ["a"]
    assert list(here.algo[here.ties_with_first]) == ["b"]
    assert np.isinf(here.simulated_time_to_accuracy_s[here.algo == "c"]).all()


def test_times_spread_out_are_those_of_the_points_and_straight_between():
    axes = Axes(RATES, DELAYS)
    few = axes.coarse(3)
    assert list(few.rates_mbit) == list(RATES[[0, 2, 4]])
    times = 7 * few.rates_mbit[:, None] ** 0.5 / few.delays_ms[None, :]
    everywhere = spread_out(times, *few, everywhere=axes)
    assert everywhere == pytest.approx(7 * RATES[:, None] ** 0.5 / DELAYS[None, :])


def test_between_a_miss_and_a_time_lies_a_miss():
    times = np.array([[1.0, 1.0], [math.inf, 1.0]])
    ends = np.array([1.0, 4.0])
    middle = np.array([1.0, 2.0, 4.0])
    everywhere = spread_out(times, ends, ends, everywhere=(middle, ends))
    assert np.isinf(everywhere).tolist() == [[False, False], [True, False], [True, False]]


class Fake:
    """A candidate whose time is the rate plus the delay."""

    def __init__(self, algo, depends_on_timing, plan):
        self.algo, self.depends_on_timing = algo, depends_on_timing
        self.plans = [plan]
        self.visited = []

    def outcomes(self, net):
        self.visited.append((net.rate_mbit, net.delay_ms))
        return [type("Outcome", (), {"time_to_accuracy_s": net.rate_mbit * net.delay_ms})]


def test_what_depends_on_timing_is_simulated_at_few_points_and_said_so(plan):
    steady, unsteady = Fake("steady", False, plan), Fake("unsteady", True, plan)
    computed = compute([steady, unsteady], Axes(RATES, DELAYS), 2)
    assert len(steady.visited) == 15
    assert sorted(unsteady.visited) == [(10, 1), (10, 100), (1000, 1), (1000, 100)]
    assert computed.simulated_at == {"unsteady": 4}
    assert computed.medians_s["unsteady"] == pytest.approx(computed.medians_s["steady"])
    said = sentences(
        computed, Field([steady, unsteady], {"x": "x needs real workers: take y", "y": "no"})
    )
    assert "The values of unsteady depend on timing: trained at 4 points" in "\n".join(said)
    assert said[-2:] == ["Left out: x needs real workers.", "Left out: y: no."]


def test_the_first_at_a_delay_is_one_that_reaches_the_target(plan):
    some = grid(
        a=lambda r, d: np.where((r > RATES[0]) & (d < DELAYS[1]), 1.0, math.inf),
        b=lambda r, d: np.where(d < DELAYS[2], 3.0, math.inf),
    )
    said = sentences(some, Field([Fake("a", False, plan)], {}))
    assert said[1:4] == [
        "At 1 ms: b, from 18 Mbit/s a.",
        *("At 10 ms: b.", "At 100 ms: none reaches the target."),
    ]


def late(rate, delay):
    return np.where(rate < 100, math.inf, 3.0)


def early(rate, delay):
    return np.where(rate < 100, 3.0, math.inf)


def test_half_way_from_a_point_that_none_reaches_none_is_first(plan):
    said = {}
    for name, of in {"late": late, "early": early}.items():
        some = grid(a=never, b=of)
        (line,) = some.crossings(0)
        assert line.rate_mbit == pytest.approx(math.sqrt(RATES[1] * RATES[2]), rel=0.01)
        said[name] = sentences(some, Field([Fake("a", False, plan)], {}))[1]
    assert said == {
        "late": "At 1 ms: none reaches the target, from 56 Mbit/s b.",
        "early": "At 1 ms: b, from 56 Mbit/s none reaches the target.",
    }


@pytest.fixture
def plan(tmp_path):
    from experiments.plan.compose import compose_config
    from experiments.plan.factory import make_plan

    return make_plan(compose_config(["algo=allreduce", "model=mlp", "backend=sim"]), tmp_path)


def test_regions_have_their_colours_and_names():
    figure = surface_plot(grid(allreduce=lambda r, d: 300 / r, bytegrad=lambda r, d: 2.0), "title")
    check(figure, "surface")
    axes, _ = figure.axes
    texts = [text.get_text() for text in axes.texts]
    assert {"allreduce", "bytegrad"} <= set(texts)
    assert texts.count("2") == 9  # the rates below 150, at every delay
    styles = drawing._region_styles(["allreduce", "bytegrad"])
    filled = {colors.to_hex(c.get_facecolor()[0]) for c in axes.collections if c.get_fill()}
    assert {colors.to_hex(style["colors"][0]) for style in styles.values()} <= filled
    assert styles["allreduce"]["hatches"] != styles["bytegrad"]["hatches"]  # grey, too


def test_axes_of_less_than_a_decade_have_plain_numbers():
    rates, delays = np.array([100.0, 200.0, 400.0]), np.array([1.0, 2.0, 4.0])
    times_s = {"allreduce": np.ones((3, 3, 3)), "bytegrad": np.full((3, 3, 3), 2.0)}
    figure = surface_plot(Grid(rates_mbit=rates, delays_ms=delays, times_s=times_s), "title")
    figure.canvas.draw()
    axes = figure.axes[0]
    for axis in (axes.xaxis, axes.yaxis):
        labels = [t.get_text() for t in [*axis.get_ticklabels(), *axis.get_ticklabels(minor=True)]]
        assert any(labels) and all(float(label) > 0 for label in labels if label)


def test_of_equal_ones_the_first_by_name_has_the_region():
    figure = surface_plot(
        grid(allreduce=lambda r, d: 1.0, qadam=lambda r, d: 1.0, sgp=lambda r, d: 9.0), "title"
    )
    axes, _ = figure.axes
    names = {text.get_text() for text in axes.texts}
    assert "allreduce" in names
    assert not {"qadam", "sgp"} & names


def test_leads_are_to_the_next_of_all_others():
    """At every point of the mesh, by sorting; and where times are equal, the first leads."""
    regions = drawing.Regions(
        grid(a=lambda r, d: 1 + r / 50, b=lambda r, d: 2 + d, c=lambda r, d: 1 + r / 50)
    )
    logs = regions.grid.log_times(regions.rates, regions.delays)
    first, second = np.sort(np.stack([logs["a"], logs["b"]]), axis=0)
    at_first = np.where(regions.leads["b"] > 0, regions.leads["b"], -regions.leads["b"])
    np.testing.assert_allclose(at_first, second - first, rtol=1e-9, atol=1e-8)
    assert set(regions.leads) == {"a", "b"}
    assert 0 < np.nanmax(regions.leads["a"]) < 1e-8, "c is as fast"
    np.testing.assert_array_equal(regions.best, first)
    ratio = regions.times_as_soon_as("b")
    np.testing.assert_allclose(np.log(ratio), logs["b"] - first, atol=1e-12)


def test_where_none_reaches_the_target_no_region_is_filled():
    some = grid(a=never, b=late)
    assert list(drawing.Regions(some).leads) == ["b"]
    axes, _ = surface_plot(some, "title").figure.axes
    assert "a" not in {text.get_text() for text in axes.texts}
    (region,) = [c for c in axes.collections if c.get_fill()]
    left = min(path.get_extents().x0 for path in region.get_paths())
    assert left == pytest.approx(math.sqrt(RATES[1] * RATES[2]), rel=0.02)
    assert not drawing.Regions(grid(a=never, b=never)).leads


def test_ties_stand_in_brackets():
    figure = surface_plot(grid(allreduce=lambda r, d: 1.0, bytegrad=lambda r, d: 1.01), "title")
    assert [t.get_text() for t in figure.axes[0].texts].count("(1)") == 15


@pytest.mark.parametrize(
    "text",
    [
        "10",
        "10:1:5",
        "0:1:5",
        "1:2:1",
        "a:b:c",
        "1:inf:3",
        "1:nan:3",
        "1:2:1001",
        "1:10:10000000000",
    ],
)
def test_an_axis_that_is_none_is_refused(text):
    with pytest.raises(UserError, match=f"--rates is LOW:HIGH:NUM .* got {text}"):
        parse_axis("--rates", text)


def test_of_more_values_than_an_axis_has_all_are_taken():
    axes = Axes(parse_axis("--rates", "1:10:7"), parse_axis("--delays", "1:10:1000"))
    everything = axes.coarse(10**12)
    assert all(map(np.array_equal, axes, everything))


def surface(*arguments):
    return app.run(*arguments, module="experiments.surface")


def test_the_command_writes_the_picture_and_the_table(tmp_path):
    ended = surface(
        *("algo=allreduce,bytegrad", "model=mlp", "workers=2", "max_steps=10", "eval_every=5"),
        *("target_accuracy=0.5", "--seeds", "1", "--rates", "1:10000:3", "--delays", "0.1:10:2"),
        *("--out", str(tmp_path)),
    )
    assert ended.returncode == 0, ended.stderr
    assert {f.name for f in tmp_path.iterdir()} == {"surface.csv", "surface.png", "surface.svg"}
    frame = pd.read_csv(tmp_path / "surface.csv")
    assert len(frame) == 2 * 6
    # The slowest link favours the fewest bytes.
    slowest = frame[(frame.rate_mbit == 1) & frame.is_first]
    assert set(slowest.algo) == {"bytegrad"}
    assert "Simulated: of 2 algorithms at 6 points" in ended.stdout


LOW_RATES = np.array([0.1, 100.0])


@pytest.mark.parametrize(
    ("net", "axes", "said"),
    [
        (
            {"workers": {0: {"rate_mbit": 10}}},
            (RATES, DELAYS),
            "net=slow_tcp has links with",
        ),
        ({"workers": {1: {"up": {"delay_ms": 1}}}}, (RATES, DELAYS), "or delay of their own, "),
        ({"down": {"rate_mbit": 10}}, (RATES, DELAYS), "choose a network whose links are alike"),
        ({"nodes": {"size": 2, "between": {"rate_mbit": 9}}}, (RATES, DELAYS), "of their own"),
        ({"faults": [{"worker": 1, "at_s": 5, "for_s": 2}]}, (RATES, DELAYS), "changes over time"),
        ({}, (LOW_RATES, DELAYS), "a point of the grid: rate_mbit=0.1 is under 1"),
        ({}, (RATES, np.array([1.0, 300_000])), "a point of the grid: delay_ms=300000.0 is over"),
        ({"jitter_ms": 2, "delay_ms": 10}, (RATES, DELAYS), "jitter_ms=2 exceeds delay_ms=1.0"),
    ],
)
def test_a_grid_is_of_links_that_are_alike_and_can_be(net, axes, said, plan):
    check_grid([plan], Axes(RATES, DELAYS))
    check_grid([replace(plan, net=NetworkCondition(nodes={"size": 2}))], Axes(RATES, DELAYS))
    with pytest.raises(UserError, match=said):
        check_grid([replace(plan, net=NetworkCondition(**net))], Axes(*axes))
    with pytest.raises(UserError, match="there is none: give target_accuracy"):
        check_grid([replace(plan, target=Target())], Axes(RATES, DELAYS))


def test_a_network_that_changes_is_refused():
    ended = surface("algo=allreduce", "model=mlp", "workers=2", "net=cellular", "--seeds=1")
    assert ended.returncode == 2
    assert "net=cellular changes over time" in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
