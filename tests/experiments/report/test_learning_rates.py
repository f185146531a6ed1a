import math

import pandas as pd

from experiments.report.data import ReportData
from experiments.report.sections.learning_rates import section as learning_rates
from tests.experiments.recorded import write_run

NEVER = 0.5  # an accuracy in the end, below the target


def write_rates(root, algo, limits, **fields):
    """Runs with three seeds at each learning rate; `limits` are what the accuracies of the seeds
    approach, at each.
    """
    for scale, of_seeds in limits.items():
        for seed, limit in enumerate(of_seeds):
            folder = root / f"{algo}_{scale}_{seed}_{len(list(root.iterdir()))}"
            write_run(folder, algo, seed=seed, limit=limit, lr_scale=scale, **fields)


def test_the_best_rate_is_that_with_the_fewest_misses_then_with_the_fewest_steps(tmp_path):
    write_rates(
        tmp_path,
        "bytegrad",
        {
            0.3: [0.99, 0.99, NEVER],  # faster than any, where it arrives
            1.0: [0.93, 0.93, 0.93],
            3.0: [0.96, 0.96, 0.96],
            10.0: [NEVER, NEVER, NEVER],
        },
    )
    write_rates(tmp_path, "local_sgd", {1.0: [0.93] * 3, 3.0: [0.97] * 3})
    write_rates(tmp_path, "allreduce", {3.0: [0.96] * 3})
    study = ReportData.load(tmp_path)
    section = learning_rates(study)
    section.save(tmp_path)
    table = pd.read_csv(tmp_path / "learning_rates.csv", dtype={"best": str}).set_index("name")
    assert list(table.index) == ["local_sgd", "bytegrad"]  # the sooner one first
    row = table.loc["bytegrad"]
    assert (row.tried, row.best, row.missed) == ("0.03, 0.1, 0.3, 1", "0.3", 0)
    setting = study.table.set_index("name").loc["bytegrad lr_scale=3"]
    assert row.steps_to_accuracy == setting.steps_to_accuracy < math.inf
    cells = section.tables["learning_rates"].cells
    assert cells["best"] == ["0.3 (the highest)", "0.3"]
    assert cells["learning rates tried"][1] == row.tried
    assert "in 1 of 2 cases" in section.finding
    assert section.finding.endswith("local_sgd.")
    assert section.notes == ["Run with one learning rate only: allreduce."]


def test_without_a_target_the_accuracy_on_the_validation_set_decides(tmp_path):
    limits = {0.3: [0.8] * 3, 1.0: [0.9] * 3, 3.0: [0.7] * 3}
    write_rates(tmp_path, "bytegrad", limits, target_accuracy=None, time_to_accuracy_s=None)
    section = learning_rates(ReportData.load(tmp_path))
    assert section.tables["learning_rates"].cells["best"] == ["0.1"]
    assert section.finding == (
        "The best learning rate has a lower and a higher one beside it in 1 case."
    )


def test_other_options_optimizers_and_networks_have_best_rates_of_their_own(tmp_path):
    for bits, best in ((4, 1.0), (8, 3.0)):
        limits = {scale: [0.97 if scale == best else 0.92] * 3 for scale in (0.3, 1.0, 3.0)}
        write_rates(tmp_path, "bytegrad", limits, options={"bits": bits})
    write_rates(tmp_path, "bytegrad", {1.0: [0.97] * 3}, optim="adam", options={"bits": 4})
    write_rates(tmp_path, "bytegrad", {0.3: [0.97] * 3}, net="lan_1g", options={"bits": 4})
    section = learning_rates(ReportData.load(tmp_path))
    table = section.tables["learning_rates"].numbers.set_index("name")
    assert table.best.to_dict() == {"bytegrad bits=4": "0.1", "bytegrad bits=8": "0.3"}
    assert set(table.optim) == {"sgd"}
    assert set(table.net) == {"wan"}


def test_the_rate_itself_may_vary_instead_of_its_scale(tmp_path):
    for lr in (10, 30, 100):
        write_run(tmp_path / str(lr), lr=lr, limit=0.99 if lr == 30 else 0.92)
    cells = learning_rates(ReportData.load(tmp_path)).tables["learning_rates"].cells
    assert (cells["learning rates tried"], cells["best"]) == (["10, 30, 100"], ["30"])


def test_a_rate_is_one_however_it_is_made(tmp_path):
    for place, (lr, scale) in enumerate([(0.03, 1.0), (0.1, 3.0), (0.3, 1.0)]):
        write_run(tmp_path / str(place), lr=lr, lr_scale=scale, limit=0.98 if lr > 0.03 else 0.95)
    section = learning_rates(ReportData.load(tmp_path))
    cells = section.tables["learning_rates"].cells
    assert cells["learning rates tried"] == ["0.03, 0.3"]
    assert cells["best"] == ["0.3 (the highest)"]
    assert "lowest or highest tried in 1 of 1 case" in section.finding


def test_rates_that_take_about_equally_many_steps_tie(tmp_path):
    steady = {0.3: [0.92] * 3, 1.0: [0.98] * 3, 3.0: [0.981] * 3}
    write_rates(tmp_path, "bytegrad", steady)
    study = ReportData.load(tmp_path)
    taken = study.table.set_index("name").steps_to_accuracy
    assert taken["bytegrad lr_scale=3"] < taken["bytegrad lr_scale=1"]
    assert taken["bytegrad lr_scale=1"] < 1.01 * taken["bytegrad lr_scale=3"]
    section = learning_rates(study)
    assert section.tables["learning_rates"].cells["best"] == ["0.1, 0.3"]
    assert "has a lower and a higher one beside it" in section.finding


def test_where_all_miss_the_highest_accuracy_decides(tmp_path):
    write_rates(tmp_path, "bytegrad", {0.3: [0.6] * 3, 1.0: [0.5] * 3})
    section = learning_rates(ReportData.load(tmp_path))
    assert section.tables["learning_rates"].cells["best"] == ["0.03 (the lowest)"]
    assert section.tables["learning_rates"].cells["steps to accuracy"] == ["missed"]


def test_one_rate_for_all_is_said(tmp_path):
    write_run(tmp_path / "a")
    section = learning_rates(ReportData.load(tmp_path))
    assert section.finding.startswith("No algorithm was run with several learning rates")
    assert not section.tables


def test_runs_that_do_not_say_their_rate_are_left_out(tmp_path):
    for seed in range(2):
        write_run(tmp_path / str(seed), seed=seed, lr_scale=1.0 + seed)
        (tmp_path / str(seed) / "config.yaml").write_text("nothing: known\n")
    assert not learning_rates(ReportData.load(tmp_path)).tables
