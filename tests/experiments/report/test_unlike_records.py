"""Records that are not as most are: what a table must not put together, drop or make up."""

import json
import math
from itertools import product

import numpy as np
import pytest
from matplotlib.text import Text
from pyarrow import parquet

from experiments.report.compare import compare
from experiments.report.data import ReportData
from experiments.report.figures.dots import dots
from experiments.report.figures.plots import accuracy_plot
from experiments.report.page.run_table import run_table
from experiments.report.page.situations import situations
from experiments.report.sections import (
    SECTIONS,
    best_over_networks,
    learning_rates,
    overview,
    performance_profile,
    scaling,
    time_against_target,
    time_to_accuracy,
    way_to_accuracy,
)
from experiments.report.statistics import ratio_interval
from experiments.report.targets.curves import Curves
from experiments.report.targets.times import Situation, settings_of_runs, times_of_all
from experiments.runs.summary import ENDED_EARLY, NOT_ENDED
from experiments.tasks.target import Target
from tests.experiments.legible import check
from tests.experiments.recorded import write_run


def test_a_network_of_the_same_name_with_another_delay_is_another_situation(tmp_path):
    """Each algorithm ran on its own: nothing is compared."""
    write_run(tmp_path / "a", "allreduce", of_net={"delay_ms": 100})
    write_run(tmp_path / "b", "bytegrad", of_net={"delay_ms": 5})
    study = ReportData.load(tmp_path)
    assert list(study.table["name"]) == ["allreduce", "bytegrad"]
    assert list(study.table.net_options) == ["delay_ms=100", "delay_ms=5"]
    assert study.table.speedup.dropna().tolist() == [1.0] and study.table.place.tolist() == [1, 1]
    cells = time_to_accuracy.section(study).tables["time_to_accuracy"].cells
    assert cells["network's"] == ["delay_ms=100", "delay_ms=5"]


def test_all_on_both_networks_of_a_name_are_compared_on_each(tmp_path):
    for algo in ("allreduce", "bytegrad"):
        for seed, delay_ms in enumerate((5, 100)):
            write_run(tmp_path / f"{algo}{seed}", algo, of_net={"delay_ms": delay_ms})
    study = ReportData.load(tmp_path)
    assert list(study.table.place) == [1, 2, 1, 2]
    table = best_over_networks.section(study).tables["times_over_networks"]
    nets = {"wan, delay_ms=5, 50 Mbit/s", "wan, delay_ms=100, 50 Mbit/s"}
    assert set(table.cells) == {"algorithm", *nets}


def test_a_model_of_the_same_name_with_other_sizes_is_another_situation(tmp_path):
    for algo in ("allreduce", "bytegrad"):
        for hidden in (64, 256):
            write_run(tmp_path / f"{algo}{hidden}", algo, of_model={"hidden": hidden})
    study = ReportData.load(tmp_path)
    assert list(study.table["name"]) == ["bytegrad", "allreduce"] * 2
    assert list(study.table.model_options) == ["hidden=256"] * 2 + ["hidden=64"] * 2
    assert "2 situations" in overview.section(study).finding


@pytest.mark.parametrize("field", ["clip_norm", "seed", "streams"])
def test_an_algorithms_field_is_not_the_runs_option_of_that_name(tmp_path, field):
    for value in (1, 5):
        for seed in (0, 1):
            write_run(tmp_path / f"{value}_{seed}", seed=seed, options={field: value})
    table = ReportData.load(tmp_path).table
    assert set(table["name"]) == {f"allreduce algo.{field}={value}" for value in (1, 5)}
    assert list(table.runs) == [2, 2]


def test_what_follows_the_seed_by_its_own_file_makes_no_setting(tmp_path):
    for seed in range(3):
        write_run(tmp_path / str(seed), seed=seed, options={"topology": {"seed": seed}})
    (row,) = ReportData.load(tmp_path).table.to_dict("records")
    assert row["name"] == "allreduce" and row["runs"] == 3


@pytest.mark.parametrize("part", [None, "compressor"])
def test_what_follows_the_seed_by_the_command_line_makes_no_setting(tmp_path, part):
    for seed in range(3):
        own = {"seed": seed}
        write_run(tmp_path / str(seed), seed=seed, options={part: own} if part else own)
    (row,) = ReportData.load(tmp_path).table.to_dict("records")
    assert row["name"] == "allreduce" and row["runs"] == 3


def test_an_algorithms_part_is_not_the_runs_group_of_that_name(tmp_path):
    for delay_ms in (5, 100):
        write_run(tmp_path / str(delay_ms), options={"net": {"delay_ms": delay_ms}})
    table = ReportData.load(tmp_path).table
    assert table.net_options.isna().all()
    assert set(table["name"]) == {f"allreduce algo.net.delay_ms={ms}" for ms in (5, 100)}


def test_runs_whose_seeds_are_unknown_are_compared_in_no_pairs(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", seed=seed)
        write_run(tmp_path / f"b{seed}", "bytegrad", seed=seed)
        file = tmp_path / f"b{seed}" / "summary.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"seed": None if seed else 0}))
    study = ReportData.load(tmp_path)
    rows = {row["name"]: row for row in study.table.to_dict("records")}
    own, baseline = rows["bytegrad"], rows["allreduce"]
    expected = ratio_interval(baseline["times_s"], own["times_s"], paired=False)
    assert (own["speedup_low"], own["speedup_high"]) == expected
    for module in SECTIONS:
        assert module.section(study).finding.endswith(".")


def test_what_was_held_out_of_the_training_set_is_another_situation(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", seed=seed)
        held_out = {"data": {"for_tuning": True}}
        write_run(tmp_path / f"b{seed}", "bytegrad", seed=seed, of_run=held_out)
    study = ReportData.load(tmp_path)
    rows = {row["name"]: row for row in study.table.to_dict("records")}
    assert rows.keys() == {"allreduce", "bytegrad"}
    assert rows["bytegrad"]["data"] == "held out of the training set"
    assert rows["bytegrad"]["place"] == rows["allreduce"]["place"] == 1
    assert math.isnan(rows["bytegrad"]["speedup"])
    write_run(tmp_path / "c", of_run={**held_out, "task": {"root": "c"}})
    assert "root=c, held out of the training set" in set(ReportData.load(tmp_path).table["data"])


def check_is_told(folder, capsys, said):
    """In a report and by `compare`."""
    assert said in overview.section(ReportData.load(folder)).notes
    compare(folder, folder / "plots")
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "values"),
    [("batch_size", (8, 64)), ("precision", ("float32", "bfloat16")), ("accumulate", (1, 4))],
)
def test_unlike_steps_of_a_situation_are_told(tmp_path, capsys, option, values):
    for algo, value in zip(("allreduce", "bytegrad"), values, strict=True):
        for seed in range(2):
            write_run(tmp_path / f"{algo}{seed}", algo, seed=seed, of_run={option: value})
    said = (
        f"Runs of one situation differ in {option}, such as {values[0]} and {values[1]}, which not "
        "every name tells: a worker's step is not the same work in all."
    )
    check_is_told(tmp_path, capsys, said)


def test_unlike_steps_with_several_numbers_of_workers_are_told(tmp_path):
    for workers, batch_size in ((2, 64), (8, 4)):
        write_run(tmp_path / str(workers), workers=workers, of_run={"batch_size": batch_size})
    said = (
        "Runs of one algorithm with several numbers of workers differ in batch_size, such as 4 and "
        "64, which not every name tells: a worker's step is not the same work in all."
    )
    assert said in overview.section(ReportData.load(tmp_path)).notes


def test_steps_that_are_alike_that_names_tell_apart_or_of_other_situations_have_no_note(tmp_path):
    alike = {"accumulate": 1}
    for algo in ("allreduce", "bytegrad"):
        for workers in (2, 8):
            write_run(tmp_path / f"a/{algo}{workers}", algo, workers=workers, of_run=alike)
        for batch_size in (8, 64):
            write_run(tmp_path / f"b/{algo}{batch_size}", algo, of_run={"batch_size": batch_size})
    write_run(tmp_path / "c/1", of_run={"batch_size": 8})
    write_run(tmp_path / "c/2", "bytegrad", "lan_1g", of_run={"batch_size": 64})
    write_run(tmp_path / "c/3", "bytegrad")  # that does not say its own
    for part in "abc":
        notes = overview.section(ReportData.load(tmp_path / part)).notes
        assert not any("the same work" in note for note in notes)


def test_unlike_intervals_of_evaluations_are_told(tmp_path, capsys):
    for algo, every in (("allreduce", 10), ("bytegrad", 600)):
        write_run(tmp_path / algo, algo, of_run={"eval_every": every})
    said = (
        "Runs of one situation differ in eval_every, such as 10 and 600, which not every name "
        "tells: those that are evaluated less often seem to reach their target later."
    )
    check_is_told(tmp_path, capsys, said)


def test_that_runs_missed_in_fewer_steps_is_told(tmp_path, capsys):
    write_run(tmp_path / "a", of_run={"max_steps": 1200})
    write_run(tmp_path / "b", "bytegrad", num_rows=12, of_run={"max_steps": 120})
    said = (
        "Runs of one situation differ in max_steps, such as 120 and 1200, which not every name "
        "tells: some missed their target in fewer steps than others had."
    )
    assert said not in overview.section(ReportData.load(tmp_path)).notes
    few = {"num_rows": 12, "limit": 0.5, "of_run": {"max_steps": 120}}
    write_run(tmp_path / "c", "bytegrad", seed=1, **few)
    check_is_told(tmp_path, capsys, said)


def test_a_seed_that_was_run_twice_is_told(tmp_path, capsys):
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", seed=seed, backend="sim")
    write_at_work(tmp_path / "at_work", seed=0, backend="sim")
    notes = overview.section(ReportData.load(tmp_path)).notes
    assert not any("intervals too narrow" in note for note in notes)
    for seed in range(2):
        write_run(tmp_path / f"again{seed}", seed=seed, backend="sim")
    said = (
        f"2 runs of a setting and a seed that another run has, such as {tmp_path}/a0 and "
        f"{tmp_path}/again0: each counts as one more seed, which makes intervals too narrow and "
        "ties too few. Leave one of each two out."
    )
    check_is_told(tmp_path, capsys, said)


def test_a_loss_that_is_no_number_is_not_the_accuracy_beside_it(tmp_path):
    target = Target(metric="loss", value=0.2)
    write_run(tmp_path / "a", target=target, limit=0.5, time_to_accuracy_s=None)
    file = tmp_path / "a" / "metrics.parquet"
    rows = parquet.read_table(file).to_pandas()
    last = rows.index[rows.kind == "evaluation"][-1]
    rows.loc[last, ["score", "accuracy"]] = [math.nan, 0.1]
    rows.to_parquet(file)
    study = ReportData.load(tmp_path)
    assert list(study.table.missed) == [1]
    assert list(study.runs.steps_to_accuracy) == [math.inf]
    assert study.evaluations.score.min() > 0.2


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ((0.98, 0.98, 0.5), "allreduce misses the target with the most workers"),
        ((0.5, 0.98, 0.98), "allreduce misses the target with the fewest workers"),
        ((0.98, 0.5, 0.98), "times that with the fewest for allreduce"),
    ],
)
def test_a_miss_at_an_end_of_the_scaling_is_told(tmp_path, limits, said):
    for workers, limit in zip((2, 8, 16), limits, strict=True):
        write_run(tmp_path / str(workers), workers=workers, limit=limit)
    finding = scaling.section(ReportData.load(tmp_path)).finding
    assert said in finding
    assert ("times that with the fewest" in finding) == (limits[0] == limits[2])


def test_a_completed_run_whose_evaluations_are_lost_has_missed_no_target(tmp_path):
    for algo in ("allreduce", "bytegrad"):
        write_run(tmp_path / algo, algo)
    (tmp_path / "bytegrad" / "metrics.parquet").write_bytes(b"torn")
    write_run(tmp_path / "local_sgd", "local_sgd", limit=0.5)
    (tmp_path / "local_sgd" / "metrics.parquet").unlink()
    study = ReportData.load(tmp_path)
    steps = study.runs.set_index("algo").steps_to_accuracy
    assert math.isnan(steps["bytegrad"]) and steps["local_sgd"] == math.inf > steps["allreduce"]
    way = way_to_accuracy.section(study)
    cells = way.tables["way_to_accuracy"].cells
    known = dict(zip(cells["algorithm"], cells["steps to accuracy"], strict=True))
    assert known["bytegrad"] == "-" and known["local_sgd"] == "missed"
    assert "the fewest steps to the target: allreduce" in way.finding.lower()
    section = time_against_target.section(study)
    assert section.tables["time_against_target"].cells["first"] == ["not known"] * 4
    assert section.finding.startswith("Evaluations cannot be read beside the time")
    for module in SECTIONS:
        module.section(study).save(tmp_path)
    alone = ReportData.load(tmp_path / "bytegrad")
    assert way_to_accuracy.section(alone).finding.startswith("Nobody knows after how many steps")
    settings, curves = settings_of_runs(study), Curves.of(study)
    [found] = situations(study, curves, settings)["situations"]
    at = situations(study, curves, settings)["problems"][0]["targets"].index(0.9)
    assert [ties.count("u") for ties in found["ties"][: at + 1]] == [2] * at + [0]


@pytest.mark.parametrize("counts", [(2, 8, 16), (2, 16)])
@pytest.mark.parametrize("seeds", [1, 3])
def test_what_diverged_with_the_most_workers_has_missed_there(tmp_path, counts, seeds):
    for workers, seed in product(counts, range(seeds)):
        fields = {"workers": workers, "seed": seed}
        if workers == 16:
            fields |= {"status": "diverged", "steps_per_s": None}
        write_run(tmp_path / f"{workers}_{seed}", **fields)
    write_at_work(tmp_path / "at_work", workers=32)
    section = scaling.section(ReportData.load(tmp_path))
    assert "llreduce misses the target with the most workers" in section.finding
    assert "times that with the fewest" not in section.finding
    [axes] = section.figures["time_over_workers"].axes
    [cross] = [line for line in axes.get_lines() if line.get_marker() == "x"]
    assert list(cross.get_xdata()) == [16]
    assert ("scaling" in section.drawings) == (len(counts) > 2)
    check(axes.figure, "time_over_workers")


def test_rates_of_which_none_came_to_anything_have_no_best_one(tmp_path):
    for scale in (10.0, 30.0):
        folder = tmp_path / str(scale)
        write_run(folder, status="diverged", lr_scale=scale, validation_accuracy=None)
    section = learning_rates.section(ReportData.load(tmp_path))
    assert section.tables["learning_rates"].cells["best"] == ["none"]
    assert section.finding == "No learning rate led allreduce to the target or to a score."


def test_rates_that_are_at_work_are_not_yet_tried(tmp_path):
    for scale, status in ((1.0, "completed"), (3.0, "completed"), (10.0, "failed")):
        reason = NOT_ENDED if status == "failed" else None
        write_run(tmp_path / str(scale), status=status, lr_scale=scale, reason=reason)
    table = learning_rates.section(ReportData.load(tmp_path)).tables["learning_rates"]
    assert table.cells["learning rates tried"] == ["0.1, 0.3"]


def write_at_work(folder, **fields):
    at_work = {"status": "failed", "reason": NOT_ENDED, "steps_per_s": None}
    write_run(folder, **at_work, **fields)


def write_ended_early(folder, **fields):
    """As a search leaves a trial that has all that counts, or is behind."""
    own = write_run(folder, **fields)
    own |= {"status": ENDED_EARLY, "reason": "its clock is at 5.1 s"}
    own |= dict.fromkeys(("steps", "steps_per_s", "final_accuracy", "validation_accuracy"))
    (folder / "summary.json").write_text(json.dumps(own))
    return own


def test_what_a_search_ended_after_the_target_has_reached_it(tmp_path):
    for seed in range(3):
        own = write_ended_early(tmp_path / str(seed), seed=seed)
        assert own["time_to_accuracy_s"]
    study = ReportData.load(tmp_path)
    [row] = study.table.to_dict("records")
    assert (row["missed"], row["reached"]) == (0, 1) and row["time_to_accuracy_s"] < math.inf
    assert 0 < row["steps_to_accuracy"] < math.inf and row["status"] == "3 of 3 ended early"
    assert "missed" not in str(time_to_accuracy.section(study).tables["time_to_accuracy"].cells)
    figure = accuracy_plot(study)
    assert figure is not None and "Crosses" not in str(figure.findobj(Text))
    [axes] = figure.axes
    assert "ended early" not in [line.get_label() for line in axes.get_lines()]


def test_what_a_search_ended_before_the_target_has_missed_none(tmp_path):
    write_ended_early(tmp_path / "a", limit=0.5)
    study = ReportData.load(tmp_path)
    [row] = study.table.to_dict("records")
    assert row["missed"] == 0 and math.isnan(row["time_to_accuracy_s"])
    assert math.isnan(row["steps_to_accuracy"])
    said = "No algorithm reaches the target of 0.9 in its median run so far."
    assert time_to_accuracy.section(study).finding == said
    assert time_to_accuracy.section(study).tables["time_to_accuracy"].cells[
        "time to accuracy (s)"
    ] == ["not ended"]
    figure = accuracy_plot(study)
    assert figure is not None and "Crosses" not in str(figure.findobj(Text))


def test_of_what_a_search_ended_lost_evaluations_leave_other_targets_unknown(tmp_path):
    own = write_ended_early(tmp_path / "a")
    (tmp_path / "a" / "metrics.parquet").write_bytes(b"torn")
    study = ReportData.load(tmp_path)
    situation = Situation(study.table.assign(target_score=0.9).to_dict("records"), [study.runs])
    [times] = times_of_all(situation, Curves.of(study), np.array([0.5, 0.9, 0.95])).values()
    np.testing.assert_array_equal(times, [[math.nan, own["time_to_accuracy_s"], math.nan]])


def test_at_a_harder_target_nobody_knows_of_what_a_search_ended(tmp_path):
    write_run(tmp_path / "a")
    write_ended_early(tmp_path / "b", algo="bytegrad", limit=0.92)
    study = ReportData.load(tmp_path)
    assert study.table.place.notna().all()
    (tmp_path / "targets.yaml").write_text("{2.0: 0.8, 1.0: 0.9, 0.5: 0.95, 0.2: 0.96}")
    cells = time_against_target.section(ReportData.load(tmp_path)).tables["time_against_target"]
    first = cells.cells["first"]
    assert first[2:] == ["not known"] * 2 and "not known" not in first[:2]


def test_what_is_at_work_has_neither_reached_nor_missed(tmp_path):
    write_at_work(tmp_path / "a")
    study = ReportData.load(tmp_path)
    said = "No algorithm reaches a target in its median run so far."
    assert way_to_accuracy.section(study).finding == said
    said = "No algorithm reaches the target of 0.9 in its median run so far."
    assert time_to_accuracy.section(study).finding == said
    write_run(tmp_path / "b", "bytegrad", limit=0.5)
    assert time_to_accuracy.section(ReportData.load(tmp_path)).finding == said


def test_networks_on_which_all_are_at_work_are_none_that_all_missed(tmp_path):
    write_at_work(tmp_path / "a", net="wan")
    write_at_work(tmp_path / "b", net="lan_1g")
    study = ReportData.load(tmp_path)
    said = "No algorithm reaches its target in any of 2 situations so far."
    assert time_to_accuracy.section(study).finding == said
    said = "No algorithm reaches a target on any network so far."
    assert best_over_networks.section(study).finding == said
    write_run(tmp_path / "c", net="slow_tcp")
    write_run(tmp_path / "d", net="dc_10g", limit=0.5)
    study = ReportData.load(tmp_path)
    said = "in 1 none reaches the target; in 2 none reaches the target so far"
    assert said in time_to_accuracy.section(study).finding
    section = best_over_networks.section(study)
    said = (
        "in 1 of 4 fields none reaches the target; in 2 of 4 fields none reaches the target so far"
    )
    assert said in section.finding
    cells = [cell for [cell] in section.tables["times_over_networks"].cells.values()]
    assert (cells.count("not ended"), cells.count("missed")) == (2, 1)
    texts = [text.get_text() for text in section.figures["best_over_networks"].findobj(Text)]
    assert (texts.count("not ended"), texts.count("all missed")) == (2, 1)


def test_the_first_where_the_baseline_missed_is_compared_with_the_next(tmp_path):
    for net in ("wan", "lan_1g"):
        write_run(tmp_path / f"{net}_a", "torch_ddp", net, limit=0.5)
        write_run(tmp_path / f"{net}_b", "bytegrad", net, time_to_accuracy_s=10.0)
    write_run(tmp_path / "c", "local_sgd", "wan", time_to_accuracy_s=20.0)
    section = best_over_networks.section(ReportData.load(tmp_path))
    texts = [text.get_text() for text in section.figures["best_over_networks"].findobj(Text)]
    assert "bytegrad\n2.00 x" in texts and "bytegrad\nalone" in texts


def test_the_profile_tells_what_is_at_work_from_what_was_not_run(tmp_path):
    for net in ("wan", "lan_1g"):
        for algo in ("allreduce", "bytegrad"):
            write_run(tmp_path / f"{algo}_{net}", algo, net)
        write_at_work(tmp_path / f"everywhere_{net}", algo="torch_ddp", net=net)
    write_run(tmp_path / "ended", "local_sgd", "wan")
    write_at_work(tmp_path / "at_work", algo="local_sgd", net="lan_1g")
    write_run(tmp_path / "once", "torch_ddp_bf16", "wan")
    notes = performance_profile.section(ReportData.load(tmp_path)).notes
    assert notes == [
        "not in the profile, since not run in every situation: torch_ddp_bf16.",
        "not in the profile, since not ended in every situation: local_sgd and torch_ddp.",
    ]


def test_a_situation_of_which_no_run_has_ended_counts_in_no_share_of_the_profile(tmp_path):
    for algo in ("allreduce", "bytegrad"):
        for net in ("wan", "lan_1g"):
            write_run(tmp_path / f"{algo}_{net}", algo, net, shared_training=True)
        write_at_work(tmp_path / algo, algo=algo, net="slow_tcp")
    study = ReportData.load(tmp_path)
    ratios = performance_profile.factors(study.table, study.table.index.to_series() * 0)
    assert ratios.attrs["weights"] == dict.fromkeys(ratios.index, 1 / 2)
    ratios = performance_profile.factors(study.table)
    assert ratios.attrs["weights"] == dict.fromkeys(ratios.index, 1.0) and len(ratios) == 2
    finding = performance_profile.section(study).finding
    assert finding.startswith("Of 2 situations of the same trainings, ") and "100 %" in finding


def test_who_takes_no_time_is_the_best_of_the_profile(tmp_path):
    for net in ("wan", "lan_1g"):
        write_run(tmp_path / f"a_{net}", "allreduce", net, time_to_accuracy_s=0.0)
        write_run(tmp_path / f"b_{net}", "bytegrad", net)
    ratios = performance_profile.factors(ReportData.load(tmp_path).table)
    assert ratios.allreduce.tolist() == [1.0, 1.0] and ratios.bytegrad.tolist() == [math.inf] * 2


def test_at_other_targets_not_all_have_missed_while_some_are_at_work(tmp_path):
    write_run(tmp_path / "a", limit=0.5, validation_accuracy=0.9)
    missed = time_against_target.section(ReportData.load(tmp_path))
    assert missed.tables["first_over_targets"].cells["2 below"] == ["all missed"]
    assert "2 below, nobody;" in missed.finding
    write_at_work(tmp_path / "b", algo="bytegrad")
    section = time_against_target.section(ReportData.load(tmp_path))
    assert section.tables["first_over_targets"].cells["2 below"] == ["not ended"]
    assert section.tables["time_against_target"].cells["first"] == ["not ended"] * 4
    assert "2 below, nobody so far;" in section.finding


def test_dots_have_no_cross_for_what_is_at_work(tmp_path):
    write_run(tmp_path / "a")
    write_at_work(tmp_path / "b", algo="bytegrad")
    write_run(tmp_path / "c", "local_sgd", limit=0.5)
    figure = dots(ReportData.load(tmp_path))
    assert figure is not None
    [axes] = figure.axes
    assert [line.get_marker() for line in axes.lines].count("x") == 1
    assert "not ended" in [text.get_text() for text in axes.texts]


def test_workers_that_shared_a_gpu_have_no_time_in_the_pages_table_of_runs(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", "bytegrad", shared_gpu=True)
    columns = {
        each["name"]: each for each in run_table(ReportData.load(tmp_path), tmp_path)["columns"]
    }
    for name in ("time_to_accuracy_s", "steps_per_s", "exposed_communication_s"):
        time, none = (columns[name]["levels"][code] for code in columns[name]["codes"])
        assert time > 0 and none is None
    assert None not in columns["final_score"]["levels"]


def test_runs_without_a_target_miss_none(tmp_path):
    write_run(tmp_path / "a", target_accuracy=None, time_to_accuracy_s=None)
    assert way_to_accuracy.section(ReportData.load(tmp_path)).finding == "The runs have no target."
