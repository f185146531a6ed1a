from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

from experiments.advise import surface_plot
from experiments.advise.grid import Grid
from experiments.advise.map import atlas
from experiments.advise.map import page as map_page
from experiments.advise.map.atlas import LOSSES_PCT, Panel, frame, panels
from experiments.advise.map.draw import map_figure, nearest, targets_figure
from experiments.advise.map.job import COMPUTE_MS, job_at
from experiments.advise.map.page import together_table, typical_table
from experiments.advise.map.points import points
from experiments.advise.map.trainings import load, trained_workers
from tests.experiments.legible import check

RHOS, LAMBDAS = np.array([0.01, 1.0, 100.0]), np.array([1e-4, 0.01, 1.0])


def panel(trained, loss_pct=0.0):
    """All-reduce is first at the least rho, ties at none, and loses elsewhere."""
    rates = np.array([job_at(rho, 0, trained.workers).rate_mbit for rho in RHOS[::-1]])
    slow = (rates[-1] / rates)[None, :, None] ** 0.5 * np.ones((3, 1, 3))
    grid = Grid(
        rates_mbit=rates,
        delays_ms=LAMBDAS * COMPUTE_MS,
        times_s={"allreduce": slow, "qsgd": np.full((3, 3, 3), 3.0)},
        model_error=0.3,
    )
    return Panel(trained=trained, loss_pct=loss_pct, grids=[grid] * len(trained.goals))


@pytest.fixture(scope="module")
def shown():
    own = [trained for trained in load()[1] if trained.task == "fashion_mnist"]
    return [panel(trained, loss) for trained in own for loss in (0.0, 1.0)]


@pytest.fixture(scope="module")
def figure(shown):
    return map_figure(shown)


def test_a_panel_for_each_number_of_workers_and_loss(figure):
    *titles, _key = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [
        *("8 workers, no loss", "8 workers, 1 % loss"),
        *("32 workers, no loss", "32 workers, 1 % loss"),
        *("128 workers, no loss", "128 workers, 1 % loss"),
    ]
    check(figure, "map", across=2)
    left, right = figure.axes[0].get_xlim()
    assert left > right  # rho grows to the right where the rate falls
    (circles,) = [c for c in figure.axes[0].collections if type(c).__name__ == "PathCollection"]
    assert len(np.asarray(circles.get_offsets())) == 3  # the three delays at the least rho


def test_numbers_of_lines_stand_out_from_hatches(figure):
    numbers = [text for text in figure.axes[0].texts if text.get_text() in ("1.5", "2", "4", "8")]
    assert numbers and all(text.get_path_effects() for text in numbers)


def test_panels_of_one_number_of_workers_stand_one_below_the_other(shown):
    *panels, _key = map_figure(shown[:2]).axes
    places = [axes.get_position() for axes in panels]
    assert len({place.x0 for place in places}) == len({place.x1 for place in places}) == 1
    assert all(low.y1 < high.y0 for high, low in pairwise(places))


def test_several_numbers_of_workers_have_a_row_each_and_each_loss_a_column(shown):
    losses = (0.0, 0.1, 1.0)
    every = [panel(own.trained, loss) for own in shown[::2] for loss in losses]
    figure = map_figure(every)
    check(figure, "map", across=3)
    *panels, _key = figure.axes
    places = np.array([axes.get_position().bounds for axes in panels]).reshape(3, 3, 4)
    left, bottom, width, height = np.moveaxis(places, 2, 0)
    assert np.allclose(left, left[0]) and np.allclose(bottom, bottom[:, :1])
    assert (left[:, :-1] + width[:, :-1] < left[:, 1:]).all()
    assert (bottom[1:] + height[1:] < bottom[:-1]).all()


@pytest.mark.parametrize("rho", [0.01, 100.0])
def test_a_name_at_the_side_of_a_frame_is_moved_into_it(shown, monkeypatch, rho):
    """As where a region is narrow, and its deepest place lies at the frame's side."""
    rate_mbit = shown[0].rate_mbit(rho)
    monkeypatch.setattr(surface_plot, "_away_from", partial(_only_at, rate_mbit))
    axes, _key = map_figure(shown[:1]).axes
    left, right = axes.get_window_extent().intervalx
    names = [text for text in axes.texts if text.get_text() in ("allreduce", "qsgd")]
    boxes = [name.get_bbox_patch().get_window_extent() for name in names]
    nearest_side = min(abs(box.x0 - left) if rho < 1 else abs(box.x1 - right) for box in boxes)
    assert nearest_side < 1
    assert all(box.x0 > left - 1 and box.x1 < right + 1 for box in boxes)


def test_names_of_neighbours_do_not_lie_on_each_other(shown, monkeypatch):
    """Of two strips whose middles are nearer to each other than the names are wide."""
    strips = [np.full((361, 361), -1.0) for _ in range(2)]
    strips[0][240:270], strips[1][270:300] = 1.0, 1.0
    names = ("allreduce", "qsgd")
    monkeypatch.setattr(surface_plot, "_leads", lambda *_: dict(zip(names, strips, strict=True)))
    axes, _key = map_figure(shown[:1]).axes
    low, high = [
        t.get_bbox_patch().get_window_extent() for t in axes.texts if t.get_text() in names
    ]
    assert not low.overlaps(high)


def _only_at(rate_mbit, _places, rates, delays):
    """1 at a rate, and next to nothing elsewhere."""
    is_free = np.full((len(rates), len(delays)), 1e-6)
    is_free[np.abs(np.log(rates / rate_mbit)).argmin()] = 1.0
    return is_free


def test_every_point_is_on_the_panels_of_the_nearest_workers(figure):
    signs = [{text.get_text() for text in axes.texts} for axes in figure.axes[:6:2]]
    for point in points():
        on = [w for w, own in zip((8, 32, 128), signs, strict=True) if point.sign in own]
        assert on == nearest(point)
    assert {p.sign: nearest(p) for p in points()} == {
        **{"H": [8], "S": [8], "A": [32]},
        **{"B10": [128], "B25": [128], "B100": [128]},
    }


def test_a_figure_of_all_targets_has_a_panel_for_each(shown):
    figure = targets_figure(shown, 32)
    check(figure, "targets")
    *titles, _key = [axes.get_title(loc="left") for axes in figure.axes]
    assert [title.partition("(")[2] for title in titles] == [
        *("2 below)", "1 below)", "0.5 below)", "0.2 below)")
    ]


def with_misses(shown, missed):
    """The first panel, of which nobody reaches the target at the `missed` places `[r, d]`."""
    (first, *_) = shown
    (at, *_) = first.grids
    times_s = {algo: np.where(missed, np.inf, times) for algo, times in at.times_s.items()}
    return replace(first, grids=[replace(at, times_s=times_s)] * len(first.grids))


def test_where_nobody_reaches_the_target_no_algorithm_is_shown(shown):
    missed = np.zeros((3, 3), bool)
    missed[0, 2] = True
    crossed = map_figure([with_misses(shown, missed)])
    axes, _key = crossed.axes
    assert "Crosses: nobody" in crossed.texts[-1].get_text().replace("\n", " ")
    marked = [c.get_offsets().tolist() for c in axes.collections if len(c.get_offsets()) == 1]
    assert [[shown[0].grids[0].rates_mbit[0], LAMBDAS[2] * COMPUTE_MS]] in marked
    nowhere = map_figure([with_misses(shown, np.ones((3, 3), bool))])
    assert "Crosses" not in "".join(text.get_text() for text in nowhere.texts)
    (axes,) = nowhere.axes
    assert "nobody reaches it" in [text.get_text() for text in axes.texts]
    assert not axes.collections


def test_no_line_or_region_comes_near_a_place_that_nobody_reaches(shown):
    missed = np.zeros((3, 3), bool)
    missed[0, 2] = True
    axes, _key = map_figure([with_misses(shown, missed)]).axes
    rates, delays = shown[0].grids[0].rates_mbit, LAMBDAS * COMPUTE_MS
    areas = [own for own in axes.collections if type(own).__name__.endswith("ContourSet")]
    drawn = np.concatenate([path.vertices for own in areas for path in own.get_paths()])
    # A fifth of the way to the next rate and delay.
    rate, delay = rates[0] ** 0.8 * rates[1] ** 0.2, delays[2] ** 0.8 * delays[1] ** 0.2
    is_near = (drawn[:, 0] < rate) & (drawn[:, 1] > delay)
    assert len(drawn) > 100 and not is_near.any()


def test_the_table_has_a_row_for_each_place_and_target(shown):
    table = frame(shown)
    assert len(table) == 9 * 2 * (4 + 4 + 4)
    won = table[(table.workers == 32) & (table.loss_pct == 0) & (table.allreduce == "wins")]
    assert sorted(set(won["lambda"])) == pytest.approx(sorted(LAMBDAS))
    assert won.rho.tolist() == pytest.approx([0.01] * 3 * 4)
    lost = table[table.allreduce == "loses"]
    assert set(lost["first"]) == set(lost.best_at_all_targets) == {"qsgd"}
    assert (lost.times_as_soon_as_allreduce > 1).all()


def test_computed_panels_have_all_algorithms_at_every_place_and_are_those_of_each_task_alone():
    alike = [trained for trained in load()[1] if trained.workers == 8][:2]
    panels = atlas._panels(alike, 0.0, RHOS[1:2], LAMBDAS[:2])
    assert [panel.trained.task for panel in panels] == [trained.task for trained in alike]
    for computed in panels:
        assert all(at.best_s.shape == (1, 2) for at in computed.grids)
        assert set(computed.grids[0].times_s) == set(computed.trained.algos)
        assert computed.rho(computed.grids[0].rates_mbit[0]) == pytest.approx(1.0)
        [alone] = atlas._panels([computed.trained], 0.0, RHOS[1:2], LAMBDAS[:2])
        for at, at_alone in zip(computed.grids, alone.grids, strict=True):
            assert all((times == at_alone.times_s[a]).all() for a, times in at.times_s.items())


def test_the_panels_of_all_tasks_come_by_task_workers_and_loss():
    wanted = ["movie_states", "fashion_mnist"]
    found = panels(wanted, RHOS[1:2], LAMBDAS[:1])
    assert [(p.trained.task, p.trained.workers, p.loss_pct) for p in found] == [
        (task, workers, loss_pct)
        for task in wanted
        for workers in trained_workers(task)
        for loss_pct in LOSSES_PCT
    ]


def test_over_all_tasks_only_those_count_that_are_first_in_each(shown):
    one = shown[0]
    other = replace(one, trained=replace(one.trained, task="other"))
    (*_, row) = together_table([one, other, shown[-1]]).splitlines()
    assert row == "| 8 | 0 | all | qsgd 6, allreduce 3 | 0 | 6 |"
    (at, *_) = one.grids
    swapped = dict(zip(at.times_s, reversed(at.times_s.values()), strict=True))
    unlike = replace(other, grids=[replace(at, times_s=swapped)] * len(one.grids))
    (*_, row) = together_table([one, unlike]).splitlines()
    assert row == "| 8 | 0 | all | - | 9 | 0 |"
    hardest = replace(other, grids=[*one.grids[:-1], replace(at, times_s=swapped)])
    rows = [line.split(" | ")[2:] for line in together_table([one, hardest]).splitlines()[2:]]
    assert rows[0] == ["2", "qsgd 6, allreduce 3", "0", "6 |"]
    assert rows[3:] == [["0.2", "-", "9", "0 |"], ["all", "-", "9", "0 |"]]


def test_some_places_say_who_is_first_where_panels_have_them(shown, monkeypatch):
    places = {"slow": (100.0, 1e-4, 0.0), "lossy": (0.01, 1.0, 1.0), "between": (0.1, 1e-4, 0.0)}
    monkeypatch.setattr(map_page, "TYPICAL", places)
    headers, _, *rows = typical_table(shown).splitlines()
    assert headers == "| task | workers | points below | slow | lossy | between |"
    assert len(rows) == 6
    said = "| qsgd, 33.3 (all seeds alike) | allreduce itself | - |"
    assert rows[:2] == [f"| fashion_mnist | 8 | {below} {said}" for below in ("1", "0.2")]
