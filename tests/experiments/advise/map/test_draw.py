import numpy as np
import pytest

from experiments.advise.grid import Grid
from experiments.advise.map import atlas
from experiments.advise.map.atlas import Panel, frame
from experiments.advise.map.draw import map_figure, nearest, targets_figure
from experiments.advise.map.job import COMPUTE_MS, job_at
from experiments.advise.map.points import points
from experiments.advise.map.trainings import load

RHOS, LAMBDAS = np.array([0.01, 1.0, 100.0]), np.array([1e-4, 0.01, 1.0])


def panel(trained, loss_pct=0.0):
    """All-reduce is first at the least rho, ties at none, and loses elsewhere."""
    rates = np.array([job_at(rho, 0, trained.workers).rate_mbit for rho in RHOS[::-1]])
    slow = (rates[-1] / rates)[None, :, None] ** 0.5 * np.ones((3, 1, 3))
    grid = Grid(
        rates_mbit=rates,
        delays_ms=LAMBDAS * COMPUTE_MS,
        times_s={"allreduce": slow, "bytegrad": np.full((3, 3, 3), 3.0)},
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
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == [
        *("16 workers, no loss", "64 workers, no loss", "128 workers, no loss"),
        *("16 workers, 1 % loss", "64 workers, 1 % loss", "128 workers, 1 % loss"),
    ]
    left, right = figure.axes[0].get_xlim()
    assert left > right  # rho grows to the right where the rate falls
    (circles,) = [c for c in figure.axes[0].collections if type(c).__name__ == "PathCollection"]
    assert len(np.asarray(circles.get_offsets())) == 3  # the three delays at the least rho


def test_every_point_is_on_the_panels_of_the_nearest_workers(figure):
    signs = [{text.get_text() for text in axes.texts} for axes in figure.axes[:3]]
    for point in points():
        on = [w for w, own in zip((16, 64, 128), signs, strict=True) if point.sign in own]
        assert on == nearest(point)
    assert {p.sign: nearest(p) for p in points()}["A"] == [16, 64]
    assert nearest(points()[0]) == [128]


def test_a_figure_of_the_targets_by_rule_has_a_panel_for_each(shown):
    titles = [axes.get_title() for axes in targets_figure(shown).axes]
    assert len(titles) == 4
    assert "0.8676 (0.2 below)" in titles[-1]


def test_the_table_has_a_row_for_each_place_and_target(shown):
    table = frame(shown)
    assert len(table) == 9 * 2 * (5 + 1 + 1)
    won = table[(table.workers == 64) & (table.loss_pct == 0) & (table.allreduce == "wins")]
    assert sorted(won["lambda"]) == pytest.approx(sorted(LAMBDAS))
    assert won.rho.tolist() == pytest.approx([0.01] * 3)
    lost = table[table.allreduce == "loses"]
    assert set(lost["first"]) == {"bytegrad"}
    assert (lost.times_as_soon_as_allreduce > 1).all()


def test_a_computed_panel_has_all_algorithms_at_every_place():
    trained = load()[1][0]
    computed = atlas._panel(trained, 0.0, RHOS[1:2], LAMBDAS[:2])
    assert all(at.best_s.shape == (1, 2) for at in computed.grids)
    assert set(computed.grids[0].times_s) == {own.algo for own in trained.trainings}
    assert computed.rho(computed.grids[0].rates_mbit[0]) == pytest.approx(1.0)
