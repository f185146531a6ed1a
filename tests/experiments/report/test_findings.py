"""What sentences of reports say of whom: of all that were run, of misses, ties and other ends."""

import math

import pandas as pd
import pytest
import yaml

from experiments.report.data import ReportData
from experiments.report.sections import (
    SECTIONS,
    final_accuracy,
    learning_rates,
    performance_profile,
    scaling,
    time_against_target,
    time_to_accuracy,
)
from experiments.report.sections.performance_profile import factors
from experiments.tasks.target import Target
from tests.experiments.recorded import write_run


def test_a_profile_counts_a_miss_as_infinity_and_takes_who_was_run_everywhere():
    rows = [
        *(("a", "lan", 1.0), ("b", "lan", 2.0), ("a", "wan", math.inf), ("b", "wan", 5.0)),
        ("c", "lan", 0.5),
    ]
    same = {"task": "t", "model": "m", "asked_rate_mbit": 1.0, "workers": 4, "gpu": None}
    kinds = ("cluster", "tcp_options", "net_options", "partition", "data", "model_options")
    same |= dict.fromkeys(kinds)
    table = pd.DataFrame(
        [{"label": label, "net": net, "time_to_accuracy_s": s} | same for label, net, s in rows]
    ).assign(target="accuracy 0.9", metric="accuracy", backend="gloo")
    ratios = factors(table)
    assert ratios.to_dict("list") == {"a": [2.0, math.inf], "b": [4.0, 1.0]}  # c is the best on lan
    assert ratios.attrs["left_out"] == ["c"]
    extra = pd.concat([table, table.iloc[[0]].assign(net="alone")], ignore_index=True)
    again = factors(extra)
    assert again.to_dict("list") == ratios.to_dict("list")
    assert again.attrs["num_other"] == 1


def test_the_best_time_of_a_profile_is_of_all_that_were_run(tmp_path):
    times = {"slow_tcp": {"allreduce": 13.4, "torch_ddp": 13.4, "bytegrad": 4.7}}
    times["wan"] = {"allreduce": 24.6, "torch_ddp": 24.6, "local_sgd": 4.3}
    for net, of_algos in times.items():
        for algo, seconds in of_algos.items():
            write_run(tmp_path / f"{algo}_{net}", algo, net, time_to_accuracy_s=seconds)
    found = performance_profile.section(ReportData.load(tmp_path))
    assert found.finding == (
        "None of 2 situations is solved within twice the best time by the 2 algorithms that were "
        "run in all of them."
    )
    assert any("bytegrad and local_sgd" in note for note in found.notes)


def test_scaling_compares_a_workers_speed(tmp_path):
    for workers, steps_per_s in ((2, 10.0), (8, 5.0)):
        write_run(tmp_path / f"{workers}", workers=workers, steps_per_s=steps_per_s)
    section = scaling.section(ReportData.load(tmp_path))
    assert "allreduce keeps 50 % of a worker's speed" in section.finding
    [panel] = section.figures["scaling"].axes
    line = next(line for line in panel.get_lines() if line.get_label() == "allreduce")
    assert list(line.get_ydata()) == [20.0, 40.0]


def test_scaling_compares_those_with_the_same_numbers_of_workers(tmp_path):
    speeds = {"allreduce": {2: 20.0, 4: 10.0, 16: 2.0}, "bytegrad": {2: 20.0, 4: 9.0}}
    speeds["local_sgd"] = {2: 30.0, 16: 15.0}
    for algo, of_workers in speeds.items():
        for workers, steps_per_s in of_workers.items():
            write_run(tmp_path / f"{algo}{workers}", algo, workers=workers, steps_per_s=steps_per_s)
    section = scaling.section(ReportData.load(tmp_path))
    assert "local_sgd keeps 50 % of a worker's speed; allreduce keeps 10 %" in section.finding
    assert "bytegrad" not in section.finding
    assert any("somewhere without bytegrad" in note for note in section.notes)


def test_runs_that_stopped_at_the_target_say_nothing_of_the_final_accuracy(tmp_path):
    for algo, stops in (("torch_ddp", True), ("bytegrad", True)):
        write_run(tmp_path / algo, algo, stop_at_target=stops)
    finding = final_accuracy.section(ReportData.load(tmp_path)).finding
    assert finding.startswith("The runs ended at their target")
    for algo in ("torch_ddp_bf16", "allreduce"):
        write_run(tmp_path / algo, algo)
    finding = final_accuracy.section(ReportData.load(tmp_path)).finding
    assert "of 1 setting" in finding and "bytegrad" not in finding


def test_a_setting_of_diverged_runs_is_not_as_good(tmp_path):
    broken = {"status": "diverged", "reason": "nan", "num_rows": 3}
    broken |= {"final_accuracy": None, "validation_accuracy": None}
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", "allreduce", seed=seed)
        write_run(tmp_path / f"b{seed}", "bytegrad", seed=seed, **(broken if seed else {}))
        write_run(tmp_path / f"c{seed}", "local_sgd", seed=seed, **broken)
        write_run(tmp_path / f"d{seed}", "torch_ddp_bf16", seed=seed)
    finding = final_accuracy.section(ReportData.load(tmp_path)).finding
    assert "above it: 1 of 3 settings; the lowest is allreduce" in finding
    assert "runs of bytegrad and local_sgd failed or diverged, which counts as neither" in finding


def test_no_gain_is_told_of_a_first_that_ties_with_the_baseline(tmp_path):
    times = {("wan", "allreduce"): (10.0, 11.0, 12.0), ("wan", "bytegrad"): (8.0, 7.0, None)}
    times |= {("lan_1g", "allreduce"): (5.0, 5.1, 5.2), ("lan_1g", "bytegrad"): (4.0, 4.1, 4.2)}
    for (net, algo), seconds in times.items():
        for seed, own_s in enumerate(seconds):
            limit = {} if own_s else {"limit": 0.85}
            write_run(
                tmp_path / f"{algo}_{net}_{seed}",
                algo,
                net,
                seed,
                time_to_accuracy_s=own_s,
                **limit,
            )
    data = ReportData.load(tmp_path)
    ties = data.table.query("net == 'wan' and is_best_baseline").ties_with_first
    assert ties.all()
    finding = time_to_accuracy.section(data).finding
    assert "in 1 the first ties with another" in finding
    assert "the greatest gain is that of bytegrad (network lan_1g" in finding


def test_fixed_targets_are_not_called_those_of_these_runs(tmp_path):
    targets = {2.0: 0.80, 1.0: 0.81, 0.5: 0.82, 0.2: 0.83}
    (tmp_path / "targets.yaml").write_text(yaml.safe_dump(targets))
    for algo in ("allreduce", "bytegrad"):
        for net in ("wan", "lan_1g"):
            write_run(tmp_path / f"{algo}_{net}", algo, net)
    finding = time_against_target.section(ReportData.load(tmp_path)).finding
    assert "the final accuracy of the tuned baseline, fixed before these runs, one" in finding


def test_runs_of_unequal_length_are_not_called_ended_at_their_target(tmp_path):
    write_run(tmp_path / "a", "allreduce", num_rows=40)
    write_run(tmp_path / "b", "bytegrad", num_rows=6)
    finding = time_against_target.section(ReportData.load(tmp_path)).finding
    assert finding.startswith("Some runs ended before others, or at an easier target, so that no")


def test_of_losses_targets_lie_above(tmp_path):
    for algo in ("allreduce", "bytegrad"):
        for lr in (1.0, 2.0):
            own = {"limit": 0.98 - 0.01 * lr, "lr_scale": lr}
            target = Target(metric="loss", value=0.01)
            write_run(tmp_path / f"{algo}{lr}", algo, target=target, **own)
    data = ReportData.load(tmp_path)
    section = time_against_target.section(data)
    assert "first at targets so many percent above" in section.finding.lower()
    assert "2 above, " in section.finding and "points" not in section.finding
    for table in section.tables.values():
        assert "so many percent above the final loss" in table.caption
        assert not any("points" in header or "below" in header for header in table.cells)
    caption = learning_rates.section(data).tables["learning_rates"].caption
    assert caption.endswith("that of the best validation loss in the end.")


def test_a_table_counts_the_rows_that_it_shows(tmp_path):
    for number in range(60):
        for algo in ("allreduce", "bytegrad"):
            write_run(tmp_path / f"{algo}{number}", algo, workers=number + 2)
    table = time_against_target.section(ReportData.load(tmp_path)).tables["first_over_targets"]
    assert table.num_rows == 60 and len(table.numbers) == 240
    assert "rows." not in table._full_caption(100)
    assert table._full_caption(50).endswith("The first 50 of 60 rows.")


@pytest.mark.filterwarnings("ignore:Glyph")
def test_dollar_signs_of_a_name_are_no_formula(tmp_path):
    for number, path in enumerate(("/data/$a_{/$x", "$x$")):
        for algo in ("allreduce", "bytegrad"):
            write_run(tmp_path / f"{algo}{number}", algo, options={"path": path})
    data = ReportData.load(tmp_path)
    drawn = [figure for module in SECTIONS for figure in module.section(data).figures.values()]
    texts = {text.get_text() for figure in drawn for axes in figure.axes for text in axes.texts}
    assert any("path=$x$" in text for text in texts)
    for figure in drawn:
        figure.canvas.draw()
