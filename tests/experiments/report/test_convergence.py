import pandas as pd
import pytest

from experiments.report.convergence import best_rows, table
from host.errors import UserError


def runs(*rows):
    columns = ("algo", "lr_scale", "validation_accuracy", "final_accuracy", "status")
    same = {
        **{"task": "t", "model": "m", "workers": 4, "steps": 10, "backend": "sim"},
        **{"optim": "sgd", "bytes_sent_per_worker": 2e6, "spread": 0.0},
    }
    return pd.DataFrame([dict(zip(columns, row, strict=True)) | same for row in rows])


BASE = [("allreduce", 1.0, 0.80, 0.81, "completed"), ("allreduce", 1.0, 0.82, 0.83, "completed")]


def test_the_rate_is_chosen_by_validation_and_reported_by_test():
    rows = best_rows(
        runs(
            *BASE,
            ("qsgd", 0.3, 0.70, 0.99, "completed"),
            ("qsgd", 3.0, 0.75, 0.60, "completed"),
        )
    )
    assert [row.algo for row in rows] == ["allreduce", "qsgd"]
    assert rows[1].lr_scale == 3.0
    assert rows[1].accuracy == pytest.approx(60)
    assert rows[0].accuracy == pytest.approx(82)
    # Student's t of 2 values: 12.706 standard errors of the mean, which is 1 point.
    assert rows[0].half_width == pytest.approx(12.706, rel=1e-3)


def test_a_rate_at_which_a_seed_diverged_gives_way_and_is_never_hidden():
    rows = best_rows(
        runs(
            *BASE,
            ("qsgd", 1.0, 0.50, 0.50, "completed"),
            ("qsgd", 3.0, 0.90, 0.90, "completed"),
            ("qsgd", 3.0, None, None, "diverged"),
        )
    )
    assert (rows[1].lr_scale, rows[1].num_failed) == (1.0, 0)
    only = best_rows(runs(*BASE, ("qsgd", 3.0, None, None, "diverged")))
    assert "1 seed diverged" in table(only)


def test_differences_are_to_all_reduce():
    text = table(best_rows(runs(*BASE, ("qsgd", 1.0, 0.8, 0.815, "completed"))))
    assert "| qsgd | sgd, 1 | 81.50 | -0.50 | 2.0 | 1.000 |" in text


def test_runs_that_cannot_be_compared_are_refused():
    with pytest.raises(UserError, match="no run of allreduce"):
        best_rows(runs(("qsgd", 1.0, 0.8, 0.8, "completed")))
    mixed = runs(*BASE)
    mixed.loc[0, "steps"] = 20
    with pytest.raises(UserError, match=r"differ in steps \(10, 20\)"):
        best_rows(mixed)
