import pandas as pd
import pytest

from experiments.report.convergence import best_rows, page, table
from experiments.runs.summary import NOT_ENDED
from host.errors import UserError


def runs(*rows):
    columns = ("algo", "lr_scale", "validation_accuracy", "final_accuracy", "status")
    same = {
        **{"task": "t", "model": "m", "workers": 4, "steps": 10, "backend": "sim"},
        **{"optim": "sgd", "bytes_sent_per_worker": 2e6, "spread": 0.0},
    }
    made = pd.DataFrame([dict(zip(columns, row, strict=True)) | same for row in rows])
    seeds = made.groupby(["algo", "lr_scale"], dropna=False).cumcount()
    return made.assign(seed=seeds, reason=None, folder=[f"runs/{k}" for k in range(len(made))])


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
    assert (rows[1].lr_scale, rows[1].failed) == (1.0, {})
    only = best_rows(runs(*BASE, ("qsgd", 3.0, None, None, "diverged")))
    assert "| qsgd | sgd, 3 | -, 1 seed diverged | - | - | - | - |" in table(only)
    assert [row.algo for row in only] == ["allreduce", "qsgd"]


def test_differences_are_to_all_reduce():
    text = table(best_rows(runs(*BASE, ("qsgd", 1.0, 0.8, 0.815, "completed"))))
    assert "| qsgd | sgd, 1 | 81.50 | -0.50 | 2.0 | 1.000 |" in text


def test_runs_that_cannot_be_compared_are_refused():
    with pytest.raises(UserError, match="no run of allreduce"):
        best_rows(runs(("qsgd", 1.0, 0.8, 0.8, "completed")))
    diverged = ("allreduce", 1.0, None, None, "diverged")
    with pytest.raises(UserError, match="no run of allreduce that completed"):
        best_rows(runs(diverged, ("qsgd", 1.0, 0.8, 0.8, "completed")))
    with pytest.raises(UserError, match="no run of allreduce that completed"):
        best_rows(runs(diverged).assign(steps=None))
    mixed = runs(*BASE)
    mixed.loc[0, "steps"] = 20
    with pytest.raises(UserError, match=r"differ in steps \(10, 20\)"):
        best_rows(mixed)


def test_what_failed_did_not_diverge_and_what_is_at_work_did_neither():
    rows = [("qsgd", 3.0, 0.9, 0.9, "completed"), ("qsgd", 3.0, None, None, "failed")]
    assert "1 seed failed" in table(best_rows(runs(*BASE, *rows)))
    unended = runs(*BASE, *rows, ("qsgd", 1.0, 0.8, 0.8, "completed"))
    unended.loc[unended.status == "failed", "reason"] = NOT_ENDED
    [_, qsgd] = sorted(best_rows(unended), key=lambda row: row.algo)
    assert (qsgd.lr_scale, qsgd.num_seeds, qsgd.failed) == (3.0, 1, {})
    unended.loc[unended.algo == "qsgd", "reason"] = NOT_ENDED
    assert "times one of 1, whichever" in page(unended, best_rows(unended))


def test_other_settings_are_no_seeds():
    twice = runs(*BASE).assign(seed=0)
    said = "runs/0 and runs/1 are two runs of allreduce with seed 0 and lr_scale=1: they differ"
    with pytest.raises(UserError, match=said):
        best_rows(twice)
    with pytest.raises(UserError, match="of allreduce with no seed and lr_scale=1"):
        best_rows(twice.assign(seed=pd.NA))


def test_a_run_that_does_not_say_its_rate_is_refused():
    with pytest.raises(UserError, match="runs/2 does not say its lr_scale: leave that run out"):
        best_rows(runs(*BASE, ("qsgd", None, 0.8, 0.8, "completed")))
