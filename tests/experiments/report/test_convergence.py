import json

import pandas as pd
import pytest

from experiments.report.convergence import best_rows, page, table
from experiments.runs.load import load_runs
from experiments.runs.summary import NOT_ENDED, SIGTERM
from host.errors import UserError
from tests.experiments.recorded import write_run


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
    unended.loc[unended.algo == "qsgd", ["status", "reason"]] = "failed", SIGTERM
    assert "times one of 1, whichever" in page(unended, best_rows(unended), "a command")


def test_other_settings_are_no_seeds():
    twice = runs(*BASE).assign(seed=0)
    said = "runs/0 and runs/1 are two runs of allreduce with seed 0 and lr_scale=1: keep one"
    with pytest.raises(UserError, match=said):
        best_rows(twice)
    with pytest.raises(UserError, match="of allreduce with no seed and lr_scale=1"):
        best_rows(twice.assign(seed=pd.NA))


def test_a_run_that_does_not_say_its_rate_is_refused():
    with pytest.raises(UserError, match="runs/2 does not say its lr_scale: leave that run out"):
        best_rows(runs(*BASE, ("qsgd", None, 0.8, 0.8, "completed")))


def write_two(root, own="", others="", **fields):
    """A run of all-reduce and one of bytegrad, each with YAML of its own; `fields` are of the
    second.
    """
    write_run(root / "a", "allreduce", of_model={"hidden": 16})
    write_run(root / "b", "bytegrad", **{"of_model": {"hidden": 16}, **fields})
    for folder, text in (("a", own), ("b", others)):
        with (root / folder / "config.yaml").open("a") as file:
            file.write(text + "\n")
    return load_runs(root)


def add_to_environment(folder, **facts):
    file = folder / "environment.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | facts))


def test_the_page_names_the_commands_and_the_machines_of_the_runs(tmp_path):
    found = write_two(tmp_path)
    made = page(found, best_rows(found), "convergence mine")
    assert ".\n\n    convergence mine\n\nA CPU, 2 cores, torch 2.13.0.\n\n| algorithm" in made
    add_to_environment(tmp_path / "a", command="run +algo=allreduce")
    add_to_environment(tmp_path / "b", command="run +algo=bytegrad", cpu="Another")
    made = page(found, best_rows(found), "convergence mine")
    commands = "    run +algo=allreduce\n    run +algo=bytegrad\n    convergence mine\n"
    machines = "A CPU, 2 cores, torch 2.13.0; Another, 2 cores, torch 2.13.0.\n"
    assert f".\n\n{commands}\n{machines}\n| algorithm" in made


def test_a_page_of_records_that_name_neither_makes_nothing_up(tmp_path):
    found = write_two(tmp_path)
    add_to_environment(tmp_path / "a", command=["no", "text"])
    for text in ("[]", "{", '{"cpu": "A CPU", "cores": "two", "packages": null}'):
        (tmp_path / "b" / "environment.json").write_text(text)
        add_to_environment(tmp_path / "a", cores=None)
        made = page(found, best_rows(found), "convergence mine")
        assert ".\n\n    convergence mine\n\nThe machine was not recorded.\n\n" in made


@pytest.mark.parametrize(
    ("own", "others", "said"),
    [
        ("data: {alpha: null}", "data: {partition: by_class}", r"data.partition \(by_class, iid\)"),
        ("data: {alpha: 1}", "data: {alpha: 0.1}", r"data.alpha \(0.1, 1\)"),
        ("data: {sizes: unequal}", "", r"data.sizes \(equal, unequal\)"),
        ("", "data: {for_tuning: true}", r"data.for_tuning \(False, True\)"),
        ("batch_size: 8", "batch_size: 2", r"batch_size \(2, 8\)"),
        ("precision: float32", "precision: bfloat16", r"precision \(bfloat16, float32\)"),
        ("accumulate: 1", "accumulate: 8", r"accumulate \(1, 8\)"),
        ("task: {root: one}", "task: {root: other}", r"task.root \(one, other\)"),
        ("task: {_target_: a.One}", "task: {_target_: a.Other}", r"task._target_ \(One, Other\)"),
    ],
)
def test_runs_with_unlike_options_are_refused(tmp_path, own, others, said):
    with pytest.raises(UserError, match=f"^the runs differ in {said}: compare like runs$"):
        best_rows(write_two(tmp_path, own, others))


def test_models_of_one_name_and_other_sizes_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"differ in model.hidden \(16, 8\): compare like runs"):
        best_rows(write_two(tmp_path, of_model={"hidden": 8}))


@pytest.mark.parametrize(
    ("own", "others"),
    [
        ("data: {loaders: 1}", "data: {loaders: 2}"),
        ("data: {alpha: 10}", "data: {alpha: 10.0}"),
        ("task: {target_accuracy: 0.9}", "task: {target_accuracy: 0.8}"),
        ("task: {_target_: earlier.One}", "task: {_target_: now.One}"),
        ("batch_size: 8", "no YAML: ["),
    ],
)
def test_what_changes_no_accuracy_and_what_is_unknown_are_compared(tmp_path, own, others):
    rows = best_rows(write_two(tmp_path, own, others, lr=0.3, cluster={"threads": 2}))
    assert {row.algo for row in rows} == {"allreduce", "bytegrad"}


def test_an_unlike_run_without_an_accuracy_is_no_matter(tmp_path):
    fields = {"status": "diverged", "final_accuracy": None, "validation_accuracy": None}
    rows = best_rows(write_two(tmp_path, "batch_size: 8", "batch_size: 2", **fields))
    assert [row.num_seeds for row in rows] == [1, 0]


@pytest.mark.parametrize(
    ("own", "others", "said"),
    [
        ({"options": {"bits": 2}}, {"options": {"bits": 8}}, r"bits \(2, 8\)"),
        ({"optim": "sgd"}, {"optim": "adamw"}, r"optim \(adamw, sgd\)"),
        ({"lr": 0.1}, {"lr": 0.10000001}, r"optim.lr \(0.1, 0.10000001\)"),
        ({}, {"of_run": {"schedule": {"factor": 0.5}}}, r"schedule.factor \(0.5, None\)"),
        ({}, {"of_run": {"clip_norm": 1.0}}, r"clip_norm \(1, None\)"),
        ({"of_net": {"delay_ms": 5}}, {"of_net": {"delay_ms": 6}}, r"net.delay_ms \(5, 6\)"),
    ],
)
def test_settings_of_one_algorithm_are_no_seeds_of_it(tmp_path, own, others, said):
    write_run(tmp_path / "base", "allreduce")
    for seed, fields in enumerate((own, others)):
        write_run(tmp_path / f"{seed}", "bytegrad", seed=seed, **fields)
    with pytest.raises(UserError, match=f"^the runs of bytegrad differ in {said}: compare like"):
        best_rows(load_runs(tmp_path))


def test_a_run_that_failed_by_another_setting_is_no_seed_either(tmp_path):
    write_run(tmp_path / "base", "allreduce")
    write_run(tmp_path / "0", "bytegrad", options={"bits": 8})
    write_run(tmp_path / "1", "bytegrad", seed=1, options={"bits": 2}, status="diverged")
    with pytest.raises(UserError, match=r"of bytegrad differ in bits \(2, 8\)"):
        best_rows(load_runs(tmp_path))


def test_seeds_and_rates_of_one_algorithm_are_of_one_setting(tmp_path):
    write_run(tmp_path / "base", "allreduce")
    for seed in range(2):
        for lr_scale in (0.3, 1.0):
            fields = {"options": {"seed": seed}, "of_run": {"log_every": 10 + seed}}
            folder = tmp_path / f"{seed}_{lr_scale}"
            write_run(folder, "bytegrad", seed=seed, lr_scale=lr_scale, **fields)
    assert {row.algo: row.num_seeds for row in best_rows(load_runs(tmp_path))}["bytegrad"] == 2
