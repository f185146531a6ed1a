import math
import statistics
from copy import deepcopy
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.text import Text
from rich.console import Console

from experiments.report.cells import remarks, render
from experiments.report.compare import compare
from experiments.report.data import ReportData
from experiments.report.figures.plots import accuracy_plot, curve
from experiments.report.results_table import AT_WORK, named, results_table
from experiments.report.scores import scored
from experiments.report.statistics import median_interval
from experiments.runs.load import load_metrics, load_runs
from experiments.runs.records import RunFolder
from experiments.runs.summary import CTRL_C, DISK, NOT_ENDED, SIGTERM, Summary
from experiments.tasks.target import Target
from experiments.training.metrics import MetricsRow, reaching
from host.errors import UserError
from tests import app
from tests.experiments.recorded import write_run

TARGET = 0.9


def write(root, algo="allreduce", seed=0, net="wan", pace_s=1.0, limit=0.95, ends=True, **fields):
    """A run of 20 evaluations, `pace_s` apart, that approach the accuracy `limit`."""
    config = {"seed": seed, "algo": fields.pop("options", {}), "net": {"name": net}}
    config |= fields.pop("of_run", {})
    known = {
        **{"algo": algo, "net": net, "task": "digits", "model": "mlp", "optim": "sgd"},
        **{"backend": "gloo", "workers": 4, "seed": seed, "target_accuracy": TARGET},
        "asked_rate_mbit": 100,
    } | {k: fields.pop(k) for k in ("backend", "workers", "asked_rate_mbit") if k in fields}
    folder = root / f"{len(list(root.iterdir())):03}"
    run = RunFolder.create(folder, config, Summary(**known))
    rows = [
        MetricsRow(kind="evaluation", step=k, time_s=k * pace_s, accuracy=limit - 0.85**k)
        for k in range(1, 21)
    ]
    for row in rows:
        run.log(row)
    if ends:
        reached = reaching(rows, Target(value=TARGET))
        end = {
            **{"status": "completed", "final_accuracy": limit - 0.1, "steps_per_s": 1 / pace_s},
            **{"bytes_sent_per_worker": 3_000_000, "exposed_communication_s": pace_s / 2},
            **{"achieved_rate_mbit": 95.0 + seed, "evaluated_model": "average"},
            "time_to_accuracy_s": None if reached is None else reached.time_s,
        }
        run.finish(Summary(**known | end | fields))
    return rows


def printed(path):
    runs = named(load_runs(path))
    console = Console(width=250)
    with console.capture() as capture:
        console.print(render(results_table(runs), runs))
    return capture.get()


def plot(path):
    figure = accuracy_plot(ReportData.load(path))
    assert figure is not None
    return figure


def said(figure):
    return " ".join(text.get_text() for text in figure.findobj(Text))


def test_one_run_a_row_with_the_numbers_of_its_rows(tmp_path):
    rows = write(tmp_path, pace_s=2.0)
    [row] = results_table(load_runs(tmp_path)).to_dict("records")
    crossing = next(r.time_s for r in rows if r.accuracy >= TARGET)
    assert row["time_to_accuracy_s"] == crossing
    assert (row["runs"], row["missed"], row["status"]) == (1, 0, "completed")
    assert math.isnan(row["low"]) and math.isnan(row["high"])
    assert (row["mb_sent_per_worker"], row["exposed_communication_s"]) == (3.0, 1.0)
    text = printed(tmp_path)
    for cell in (f"{crossing:.1f}", "0.8500", "3.00", "0.5", "1.00"):
        assert f" {cell} " in text
    assert "status" not in text and "runs" not in text


def test_seeds_are_one_row_of_medians_with_an_interval(tmp_path):
    paces = [3.0, 1.0, 2.0]
    rows = [write(tmp_path, seed=seed, pace_s=pace) for seed, pace in enumerate(paces)]
    times = [next(r.time_s for r in run if r.accuracy >= TARGET) for run in rows]
    [row] = results_table(load_runs(tmp_path)).to_dict("records")
    assert row["runs"] == 3
    assert row["time_to_accuracy_s"] == statistics.median(times)
    assert row["steps_per_s"] == 0.5
    assert (row["low"], row["high"]) == median_interval(times)
    assert f"{times[2]:.1f} ({row['low']:.2f} to {row['high']:.0f})" in printed(tmp_path)


def test_two_runs_have_no_interval(tmp_path):
    for seed in range(2):
        write(tmp_path, seed=seed)
    [row] = results_table(load_runs(tmp_path)).to_dict("records")
    assert row["runs"] == 2 and math.isnan(row["low"])
    assert f" {row['time_to_accuracy_s']:.1f} │" in printed(tmp_path)


def test_misses_count_as_infinity(tmp_path):
    for seed, limit in enumerate([0.95, 0.95, 0.95, 0.95, 0.95, 0.5]):
        write(tmp_path, "allreduce", seed, limit=limit)
    for seed, limit in enumerate([0.95, 0.5, 0.5]):
        write(tmp_path, "async", seed, limit=limit, pace_s=0.1)
    first, last = results_table(load_runs(tmp_path)).to_dict("records")
    assert (first["name"], first["missed"], first["high"]) == ("allreduce", 1, math.inf)
    assert math.isfinite(first["time_to_accuracy_s"])
    assert (last["name"], last["missed"], last["time_to_accuracy_s"]) == ("async", 2, math.inf)
    text = printed(tmp_path)
    assert "to missed), missed (1/6)" in text and "missed (2/3)" in text


def test_rows_are_sorted_by_time_within_a_situation_and_misses_come_last(tmp_path):
    for net in ("wan", "lan"):
        write(tmp_path, "slow", net=net, pace_s=3.0)
        write(tmp_path, "missed", net=net, limit=0.5)
        write(tmp_path, "missed_nearly", net=net, limit=0.8)
        write(tmp_path, "fast", net=net, pace_s=1.0)
    table = results_table(load_runs(tmp_path))
    assert table["net"].tolist() == ["lan"] * 4 + ["wan"] * 4
    assert table["name"].tolist() == ["fast", "slow", "missed_nearly", "missed"] * 2
    assert printed(tmp_path).count("├") == 1  # a rule between the networks


def test_what_all_runs_share_is_said_once_and_what_differs_leads(tmp_path):
    write(tmp_path, workers=4)
    text = printed(tmp_path)
    assert "digits, mlp, network wan, 4 workers, gloo" in text
    assert "target accuracy 0.9, optimizer sgd, 100 Mbit/s asked, 95 Mbit/s measured" in text
    write(tmp_path, workers=8, net="lan", asked_rate_mbit=1000, seed=2)
    text = printed(tmp_path)
    header = next(line for line in text.splitlines() if "algorithm" in line)
    words = [word.strip() for word in header.strip("┃").split("┃")]
    leading = ["network", "Mbit/s asked", "workers", "Mbit/s measured", "algorithm"]
    assert words[:5] == leading
    assert "network wan" not in text and "4 workers" not in text


def test_failed_and_diverged_runs_stay_and_say_so(tmp_path):
    write(tmp_path, "allreduce")
    write(tmp_path, "async", ends=False)
    write(tmp_path, "signsgd", 0)
    write(tmp_path, "signsgd", 1, status="diverged", reason="the loss is NaN")
    table = results_table(load_runs(tmp_path))
    status = dict(zip(table["name"], table["status"], strict=True))
    assert status == {"allreduce": "completed", "async": AT_WORK, "signsgd": "1 of 2 diverged"}
    text = printed(tmp_path)
    assert AT_WORK in text and "1 of 2 diverged" in text
    lines = remarks(named(load_runs(tmp_path)))
    assert len(lines) == 2
    assert lines[0].endswith(f"/001: {NOT_ENDED}")
    assert " diverged: the loss is NaN" in lines[1]


def test_nobody_knows_what_a_run_will_reach_that_has_not_ended(tmp_path):
    for seed in range(2):
        write(tmp_path, "allreduce", seed)
    write(tmp_path, "allreduce", 2, ends=False)
    for seed in range(3):
        write(tmp_path, "async", seed, ends=False)
    table = results_table(load_runs(tmp_path)).set_index("name")
    ours, at_work = table.loc["allreduce"], table.loc["async"]
    assert (ours.runs, ours.missed, ours.reached) == (2, 0, 1.0)
    assert ours.status == "1 of 3 not ended" and math.isfinite(ours.time_to_accuracy_s)
    assert at_work.missed == 0 and math.isnan(at_work.reached)
    assert math.isnan(at_work.time_to_accuracy_s) and math.isnan(at_work.place)
    assert "missed" not in printed(tmp_path)


@pytest.mark.parametrize("reason", [CTRL_C, SIGTERM, f"{DISK}No space left on device"])
def test_a_run_that_was_stopped_from_outside_has_not_ended(tmp_path, reason):
    stopped = {"status": "failed", "reason": reason, "time_to_accuracy_s": None}
    stopped |= {"final_accuracy": 0.1, "steps_per_s": 100.0}
    for seed in range(3):
        write(tmp_path, "allreduce", seed, pace_s=2.0)
        write(tmp_path, "bytegrad", seed, **(stopped if seed else {}))
    first, second = results_table(load_runs(tmp_path)).itertuples()
    assert (first.name, first.place, first.runs, first.missed) == ("bytegrad", 1, 1, 0)
    assert (first.reached, first.status) == (1.0, "2 of 3 not ended")
    assert (first.final_score, first.steps_per_s) == pytest.approx((0.85, 1.0))
    assert (second.name, second.place) == ("allreduce", 2)
    lines = remarks(named(load_runs(tmp_path)))
    assert [line.partition(" ")[2] for line in lines] == [f"not ended ({reason})"] * 2


def test_a_killed_seed_belongs_to_its_setting(tmp_path):
    write(tmp_path, seed=0)
    write(tmp_path, seed=1, ends=False)
    [row] = results_table(load_runs(tmp_path)).to_dict("records")
    assert (row["runs"], row["missed"], row["status"]) == (1, 0, "1 of 2 not ended")


def test_runs_with_other_options_are_not_seeds_of_one_another(tmp_path):
    for bits in (4, 8):
        write(tmp_path, "bytegrad", options={"bits": bits, "same": 1})
    write(tmp_path, "allreduce")
    runs = load_runs(tmp_path)
    assert list(named(runs)["name"]) == ["bytegrad bits=4", "bytegrad bits=8", "allreduce"]
    assert results_table(runs)["runs"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    "fields",
    [
        {"options": {"momentum": 0, "same": True, "of": [[1, {"k": 2}], 0.5]}},
        {"of_run": {"cluster": {"straggler": 0}}},
        {"of_run": {"data": {"partition": "dirichlet", "alpha": 10}}},
        {"of_run": {"net": {"name": "wan", "delay_ms": 25}, "lr_scale": 1}},
    ],
)
def test_equal_numbers_are_one_setting_however_they_were_written(tmp_path, fields):
    def floats(value):
        if isinstance(value, dict):
            return {key: floats(part) for key, part in value.items()}
        if isinstance(value, list):
            return [floats(part) for part in value]
        return float(value) if type(value) is int else value

    write(tmp_path, seed=0, **deepcopy(fields))
    alone = results_table(load_runs(tmp_path))
    for seed in (1, 2):
        write(tmp_path, seed=seed, **floats(fields))
    table = results_table(load_runs(tmp_path))
    told = ["runs", "name", "cluster", "partition", "net_options", "place"]
    assert table[told].equals(alone.assign(runs=3)[told])


def test_a_truth_value_and_a_number_are_two(tmp_path):
    for seed, nested in enumerate((True, 1, 1.0)):
        write(tmp_path, seed=seed, options={"nested": nested})
    assert sorted(results_table(load_runs(tmp_path)).runs) == [1, 2]


def test_a_run_that_goes_on_with_another_counts_in_its_place(tmp_path):
    first = tmp_path / "000"
    write(tmp_path, seed=0, ends=False)
    write(tmp_path, seed=0, of_run={"resume": str(first)}, resumed_from=str(first))
    write(tmp_path, seed=1)
    table = results_table(load_runs(tmp_path))
    assert table[["name", "runs", "missed"]].to_numpy().tolist() == [["allreduce", 2, 0]]
    [problem] = load_runs(tmp_path).attrs["problems"]
    assert problem == f"{first} is left out, {tmp_path / '001'} goes on with it."


@pytest.mark.parametrize("resumed_from", ["results/runs/000", "/elsewhere/000"])
def test_a_run_that_goes_on_is_known_where_records_have_been_moved(resumed_from, tmp_path):
    write(tmp_path, ends=False)
    write(tmp_path, seed=1, resumed_from="/elsewhere/000")  # no run of this training is here
    write(tmp_path, status="failed", resumed_from="/elsewhere/002")  # nor another of this name
    assert len(load_runs(tmp_path)) == 3
    write(tmp_path, resumed_from=resumed_from)
    assert list(load_runs(tmp_path).seed) == [1, 0, 0]


def test_a_run_that_had_ended_stays_beside_a_longer_one(tmp_path):
    write(tmp_path, of_run={"max_steps": 20})
    write(tmp_path, of_run={"max_steps": 40}, resumed_from=str(tmp_path / "000"))
    assert sorted(results_table(load_runs(tmp_path)).name) == [
        "allreduce max_steps=20",
        "allreduce max_steps=40",
    ]


def test_simulated_runs_are_labelled(tmp_path):
    write(tmp_path, backend="sim", achieved_rate_mbit=None)
    assert "4 workers, simulated" in printed(tmp_path)
    assert "simulated" in plot(tmp_path).get_suptitle()
    write(tmp_path, backend="gloo")
    assert list(named(load_runs(tmp_path)).label) == ["allreduce, simulated", "allreduce, gloo"]
    assert "│ simulated │" in printed(tmp_path)


def test_names_are_not_taken_for_markup(tmp_path):
    write(tmp_path, "async[bold]")
    assert "async[bold]" in printed(tmp_path)


def test_a_curve_is_the_median_and_range_over_seeds(tmp_path):
    seeds = [write(tmp_path, seed=s, pace_s=1.0 + s, limit=0.9 + s / 50) for s in range(3)]
    line = curve(scored(load_metrics(tmp_path), load_runs(tmp_path)).assign(status="completed"))
    assert line["time_s"].tolist() == [row.time_s for row in seeds[1]]
    assert line["score"].tolist() == [row.accuracy for row in seeds[1]]
    assert line["least"].tolist() == [row.accuracy for row in seeds[0]]
    assert line["greatest"].tolist() == [row.accuracy for row in seeds[2]]


def test_a_curve_ends_where_its_first_completed_run_does(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"{seed}", seed=seed, num_rows=20 - 6 * seed)
    write_run(tmp_path / "failed", seed=3, num_rows=2, status="failed")
    status = load_runs(tmp_path)[["folder", "status"]]
    evaluations = scored(load_metrics(tmp_path), load_runs(tmp_path)).merge(status, on="folder")
    assert len(curve(evaluations)) == 8
    assert len(curve(evaluations.loc[evaluations.status == "failed"])) == 2
    completed = evaluations.loc[evaluations.status == "completed"]
    assert curve(evaluations).equals(curve(completed))  # and no median jumps where one has failed


def test_the_plot_has_a_panel_for_each_network_and_one_style_for_each_algorithm(tmp_path):
    for net in ("lan", "wan"):
        for algo in ("allreduce", "async"):
            write(tmp_path, algo, net=net, pace_s=1.0 if net == "lan" else 2.0)
    panels = plot(tmp_path).axes
    assert [panel.get_title(loc="left") for panel in panels] == ["network lan", "network wan"]
    styles = [
        {line.get_label(): (line.get_color(), line.get_marker()) for line in panel.get_lines()}
        for panel in panels
    ]
    assert styles[0] == styles[1] and styles[0].keys() == {"allreduce", "async", "target"}
    assert len(set(styles[0].values())) == 3
    for panel in panels:
        assert panel.get_xlabel() == "training time (s)"
        low, high = panel.get_ylim()
        assert 0.2 < low < TARGET < high < 1.0  # not from where the curves start


def test_a_completed_run_never_lies_below_the_plot(tmp_path):
    for algo in ("a", "b", "c", "d", "e"):
        write(tmp_path, algo)
    write(tmp_path, "poor", limit=0.3)
    [panel] = plot(tmp_path).axes
    assert panel.get_ylim()[0] < 0.3 - 0.85**20


def test_a_run_that_ended_early_is_crossed(tmp_path):
    write(tmp_path, "allreduce")
    rows = write(tmp_path, "async", pace_s=7.0, status="failed")
    write(tmp_path, "qsgd", pace_s=5.0, ends=False)  # at work
    figure = plot(tmp_path)
    [cross] = [line for line in figure.axes[0].get_lines() if line.get_label() == "ended early"]
    assert np.asarray(cross.get_xdata()).tolist() == [rows[-1].time_s]
    assert "a run failed or diverged there" in said(figure)


def test_a_run_at_work_has_no_cross(tmp_path):
    write(tmp_path, "allreduce")
    write(tmp_path, "async", pace_s=7.0, ends=False)
    figure = plot(tmp_path)
    lines = {line.get_label() for line in figure.axes[0].get_lines()}
    assert lines == {"allreduce", "async", "target"} and "failed" not in said(figure)


def test_compare_writes_plots_and_prints(tmp_path, capsys):
    runs = tmp_path / "runs"
    runs.mkdir()
    for seed in range(2):
        write(runs, seed=seed)
    (runs / "000" / "metrics.parquet").write_bytes(b"torn")
    compare(runs, tmp_path / "new" / "out")
    png = (tmp_path / "new" / "out" / "accuracy.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n" and len(png) > 10_000
    svg = ElementTree.parse(tmp_path / "new" / "out" / "accuracy.svg")
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}path"))) > 10
    text = capsys.readouterr().out
    assert "exposed communication (s)" in text and "accuracy.svg" in text
    assert "metrics.parquet cannot be read" in text


def test_runs_without_evaluations_have_a_table_and_no_plot(tmp_path, capsys):
    RunFolder.create(tmp_path / "run", {}, Summary(algo="allreduce", net="wan"))
    compare(tmp_path)
    assert "No plot: no run was evaluated." in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_no_run_or_no_folder_is_a_users_error(tmp_path):
    with pytest.raises(UserError, match="There is no run in"):
        compare(tmp_path)
    with pytest.raises(UserError, match="There is no folder"):
        compare(tmp_path / "misspelt")


def test_a_folder_that_cannot_be_written_is_a_users_error(tmp_path):
    write(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="choose --out"):
        compare(tmp_path, tmp_path / "file")


def run_command(*arguments):
    return app.run(*arguments, module="experiments.compare")


def test_command_line(tmp_path):
    write(tmp_path, "an_algorithm_with_quite_a_long_name")
    done = run_command(tmp_path, "--out", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert "an_algorithm_with_quite_a_long_name" in done.stdout
    assert "exposed communication (s)" in done.stdout  # the last column is not cut off
    assert (tmp_path / "out" / "accuracy.png").exists()


def test_command_line_without_runs_ends_with_one_sentence(tmp_path):
    done = run_command(tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: There is no run in {tmp_path}.\n"


def test_the_target_is_in_view_also_where_all_evaluations_lie_above_it(tmp_path):
    write(tmp_path, limit=0.99, target_accuracy=0.5)
    figure = accuracy_plot(ReportData.load(tmp_path))
    assert figure is not None
    bottom, top = figure.axes[0].get_ylim()
    assert bottom < 0.5 < top
