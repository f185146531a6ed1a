import json
import math
import statistics
from collections import defaultdict
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from experiments.report.data import ReportData
from experiments.report.results_table import AT_WORK
from experiments.report.sections import (
    SECTIONS,
    best_over_networks,
    bytes_sent,
    exposed_communication,
    final_accuracy,
    incomplete,
    overview,
    scaling,
    time_against_target,
    time_to_accuracy,
    way_to_accuracy,
)
from experiments.report.statistics import median_interval
from experiments.runs.load import load_metrics
from experiments.tasks.target import Target
from host.errors import UserError
from tests.experiments.recorded import ALGOS, NETS, TARGET, at_target, write_run, write_study


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("study")
    write_study(root)
    return root


@pytest.fixture(scope="module")
def study(folder):
    return ReportData.load(folder)


def run_at_target(folder, run, target=TARGET):
    """What the rows of a parquet come to at the target; None for a miss."""
    rows = parquet.ParquetFile(folder / run / "metrics.parquet").read().to_pylist()
    return at_target(rows, target, ("time_s", "bytes_sent", "step"))


def test_the_numbers_of_the_tables_are_those_of_the_parquet(folder, study, tmp_path):
    for name, section in (
        ("time_to_accuracy", time_to_accuracy),
        ("way_to_accuracy", way_to_accuracy),
    ):
        section.section(study).tables[name].save(tmp_path, name)
    seconds = pd.read_csv(tmp_path / "time_to_accuracy.csv").set_index(["name", "net"])
    way = pd.read_csv(tmp_path / "way_to_accuracy.csv").set_index(["name", "net"])
    assert len(seconds) == len(way) == len(ALGOS) * len(NETS)
    broken = {"bytegrad_wan_s1", "local_sgd_lan_1g_s2"}
    for algo, net in seconds.index:
        runs = [f"{algo}_{net}_s{seed}" for seed in range(3)]
        firsts = [None if run in broken else run_at_target(folder, run) for run in runs]
        times_s = [math.inf if first is None else first["time_s"] for first in firsts]
        row = seconds.loc[algo, net]
        assert row.time_to_accuracy_s == pytest.approx(statistics.median(times_s))
        expected = median_interval(times_s)
        assert (row.low, row.high) == pytest.approx(expected, nan_ok=True)
        assert (row.runs, row.missed) == (3, firsts.count(None))
        sent = [math.inf if first is None else first["bytes_sent"] / 1e6 for first in firsts]
        assert way.loc[algo, net].mb_to_accuracy == pytest.approx(statistics.median(sent))
        steps = [math.inf if first is None else first["step"] for first in firsts]
        assert way.loc[algo, net].steps_to_accuracy == pytest.approx(statistics.median(steps))


def test_a_table_has_all_networks_side_by_side(folder, study, tmp_path):
    best_over_networks.section(study).save(tmp_path)
    table = pd.read_csv(tmp_path / "times_over_networks.csv").set_index("name")
    names = {net: f"{net}, {rate:g} Mbit/s" for net, rate in NETS.items()}
    assert list(table.columns[-len(NETS) :]) == [names[net] for net in sorted(NETS, key=NETS.get)]
    assert set(table.index) == set(ALGOS)
    lines = (tmp_path / "times_over_networks.md").read_text().splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    read = {row[0]: dict(zip(cells[0], row, strict=True)) for row in cells[2:]}
    for setting in study.table.to_dict("records"):
        name, net, took_s = setting["name"], names[setting["net"]], setting["time_to_accuracy_s"]
        assert table.loc[name, net] == took_s
        cell = read[name][net]
        if math.isinf(took_s):
            assert cell == "missed"
            continue
        assert float(cell.split()[0].replace(",", "")) == pytest.approx(took_s, rel=0.005)
        assert ("(missed 1/3)" in cell) == (setting["missed"] == 1)
        assert cell.endswith("*") == (setting["place"] == 1 or setting["ties_with_first"])


def test_what_was_not_run_on_a_network_is_a_dash_and_situations_stay_together(tmp_path):
    for algo, net, workers in (
        *(("bytegrad", "wan", 4), ("bytegrad", "lan_1g", 4), ("allreduce", "wan", 4)),
        *(("bytegrad", "wan", 8), ("allreduce", "wan", 8), ("allreduce", "lan_1g", 8)),
    ):
        write_run(tmp_path / f"{algo}_{net}_{workers}", algo, net, workers=workers)
    table = best_over_networks.section(ReportData.load(tmp_path)).tables["times_over_networks"]
    assert table.cells["workers"] == ["4", "4", "8", "8"]
    rows = pd.DataFrame(table.cells).set_index(["workers", "algorithm"])["lan_1g, 1000 Mbit/s"]
    assert rows["8", "bytegrad"] == "-"
    assert rows["8", "allreduce"].endswith("*")


def test_workers_of_other_kinds_are_other_situations_not_other_algorithms(tmp_path):
    kinds = [
        {"straggler": 0, "jitter": None},
        {"straggler": 3, "jitter": None},
        {"straggler": 3, "jitter": {"_target_": "netsim.timeline.compute.Lognormal"}},
    ]
    said = {"straggler=0", "straggler=3", "jitter=netsim.timeline.compute.Lognormal, straggler=3"}
    for algo in ("allreduce", "bytegrad"):
        for i, cluster in enumerate(kinds):
            write_run(tmp_path / f"{algo}_{i}", algo, backend="sim", cluster=cluster)
    study = ReportData.load(tmp_path)
    assert set(study.table.label) == {"allreduce", "bytegrad"}
    assert set(study.table.cluster) == said
    assert (study.table.query("algo == 'allreduce'").speedup == 1).all()
    table = best_over_networks.section(study).tables["times_over_networks"]
    assert table.cells["algorithm"] == ["bytegrad", "allreduce"]
    assert len(table.cells) == 1 + len(kinds)


def test_a_network_with_another_tcp_is_another_situation(tmp_path):
    """Records from before one could ask for it count as those with Linux's own."""
    tcps = [{}, {"mtu": 1500}, {"tcp_wmem_max_kb": 64, "mtu": 9000}]
    for algo in ("allreduce", "bytegrad"):
        for seed, own in enumerate(tcps):
            write_run(tmp_path / f"{algo}_{seed}", algo, seed=seed, of_net=own)
    study, own = ReportData.load(tmp_path), "mtu=9000, wmem_max_kb=64"
    assert set(study.table["name"]) == {"allreduce", "bytegrad"}
    runs = study.table.fillna({"tcp_options": ""}).groupby("tcp_options").runs
    assert runs.agg(list).to_dict() == {"": [2, 2], own: [1, 1]}
    table = best_over_networks.section(study).tables["times_over_networks"]
    assert set(table.cells) == {"algorithm", "wan, 50 Mbit/s", f"wan, {own}, 50 Mbit/s"}
    for seed, _ in enumerate(tcps):
        write_run(tmp_path / "all" / str(seed), seed=seed, of_net=tcps[2])
    assert own in overview.section(ReportData.load(tmp_path / "all")).finding


def test_a_limit_on_waiting_makes_no_other_algorithm(tmp_path):
    for seed, timeout_s in enumerate((30, 60, 90)):
        write_run(tmp_path / str(seed), seed=seed, cluster={"timeout_s": timeout_s})
    assert list(ReportData.load(tmp_path).table.runs) == [3]


def without_losses(folder):
    """Make the record of a run one from before evaluations recorded the loss."""
    newer = {"validation_loss", "final_loss", "final_bits_per_character"}
    summary = json.loads((folder / "summary.json").read_text())
    older = {name: value for name, value in summary.items() if name not in newer}
    (folder / "summary.json").write_text(json.dumps(older))
    rows = parquet.ParquetFile(folder / "metrics.parquet").read()
    parquet.write_table(rows.drop_columns("validation_loss"), folder / "metrics.parquet")


def test_records_without_losses_are_reported_alone_and_beside_newer_ones(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", "allreduce", seed=seed)
        without_losses(tmp_path / f"a{seed}")
    old = final_accuracy.section(ReportData.load(tmp_path)).tables["final_accuracy"]
    assert not {"loss (test, nats)", "bits a character or byte (test)"} & set(old.cells)
    assert old.numbers.final_loss.isna().all()
    for seed in range(3):
        bits = {"final_loss": 1.3, "final_bits_per_character": 1.3 / math.log(2)}
        write_run(tmp_path / f"b{seed}", "bytegrad", seed=seed, **bits)
    study = ReportData.load(tmp_path)
    assert len(study.table) == 2
    both = final_accuracy.section(study).tables["final_accuracy"]
    assert sorted(both.cells["loss (test, nats)"]) == ["-", "1.3000"]
    assert sorted(both.cells["bits a character or byte (test)"]) == ["-", "1.876"]
    losses = load_metrics(tmp_path).groupby("algo").validation_loss.count()
    assert losses.to_dict() == {"allreduce": 0, "bytegrad": 60}


def test_speed_up_is_over_the_fastest_of_pytorchs_own(study):
    for net, rows in study.table.groupby("net"):
        rows = rows.set_index("name")
        best = min((rows.time_to_accuracy_s[n], n) for n in ALGOS if n.startswith("torch_ddp"))
        assert set(rows.baseline) == {best[1]}
        assert rows.seeds[best[1]] == rows.seeds["bytegrad"]
        pairs = zip(rows.times_s[best[1]], rows.times_s["bytegrad"], strict=True)
        ratio = statistics.median(slower / faster for slower, faster in pairs)
        if rows.missed["bytegrad"]:  # and no interval
            ratio = best[0] / rows.time_to_accuracy_s["bytegrad"]
        assert rows.speedup["bytegrad"] == pytest.approx(ratio), net
        assert rows.speedup[best[1]] == 1


def test_ties_are_named(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", "allreduce", seed=seed)
        write_run(tmp_path / f"t{seed}", "torch_ddp", seed=seed)
        write_run(tmp_path / f"b{seed}", "bytegrad", seed=seed)
    study = ReportData.load(tmp_path)
    finding = time_to_accuracy.section(study).finding
    assert finding.startswith(f"bytegrad reaches the target of {TARGET:g} first, in ")
    assert "as fast as torch_ddp, the best baseline" in finding and "tie" not in finding
    for seed in range(3):
        write_run(tmp_path / f"q{seed}", "bytegrad", seed=seed, workers=4, options={"bits": 4})
    tied = time_to_accuracy.section(ReportData.load(tmp_path))
    assert tied.finding.startswith("bytegrad bits=4 reaches")
    assert tied.finding.endswith(", and ties with bytegrad bits=null.")
    places = tied.tables["time_to_accuracy"].cells["place"]
    assert places[:2] == ["1", "1, ties with 1"]


def test_equal_times_tie_whatever_the_seeds(tmp_path):
    for algo, folder in (("allreduce", "a"), ("bytegrad", "b")):
        write_run(tmp_path / folder, algo, time_to_accuracy_s=7.0)
    study = ReportData.load(tmp_path)
    assert study.table.ties_with_first.sum() == 1
    assert "ties with " in time_to_accuracy.section(study).finding


def test_a_missed_seed_of_the_first_is_said(tmp_path):
    for seed, limit in enumerate((0.98, 0.98, 0.5)):
        write_run(tmp_path / f"b{seed}", "bytegrad", seed=seed, limit=limit)
    finding = time_to_accuracy.section(ReportData.load(tmp_path)).finding
    assert "missed by 1 of 3 runs" in finding


def test_the_best_of_most_networks_is_not_said_to_be_the_best_of_all(tmp_path):
    for net, limit in (("wan", 0.98), ("lan_1g", 0.98), ("slow_tcp", 0.5)):
        for algo in ("allreduce", "bytegrad"):
            write_run(tmp_path / f"{net}_{algo}", algo, net, limit=limit)
    finding = best_over_networks.section(ReportData.load(tmp_path)).finding
    assert "each of" not in finding
    assert finding.endswith("in 1 of 3 fields none reaches the target.")


def test_the_stand_in_for_a_baseline_is_named(tmp_path):
    write_run(tmp_path / "a", backend="sim")
    notes = " ".join(overview.section(ReportData.load(tmp_path)).notes)
    assert "allreduce stands in as the baseline" in notes


@pytest.mark.parametrize(("workers", "said"), [(1, "1 worker,"), (2, "2 workers,")])
def test_one_worker_is_no_workers(tmp_path, workers, said):
    write_run(tmp_path / "a", workers=workers)
    finding = overview.section(ReportData.load(tmp_path)).finding
    assert said in finding and "1 run of 1 algorithm in 1 situation" in finding


def test_fewer_than_three_seeds_are_called_so(tmp_path):
    write_run(tmp_path / "a", "allreduce")
    write_run(tmp_path / "b", "bytegrad")
    study = ReportData.load(tmp_path)
    assert "fewer than 3 seeds" in time_to_accuracy.section(study).finding
    assert "2 settings of 2 with fewer than 3 seeds" in " ".join(overview.section(study).notes)
    assert study.table.ties_with_first.sum() == 0


def test_simulated_and_measured_are_never_compared(tmp_path):
    for seed in range(3):
        for algo in ("allreduce", "bytegrad"):
            write_run(tmp_path / f"s_{algo}{seed}", algo, seed=seed, backend="sim")
            write_run(tmp_path / f"m_{algo}{seed}", algo, "dc_10g", seed, asked_rate_mbit=50.0)
        write_run(tmp_path / f"d{seed}", "torch_ddp", "dc_10g", seed, asked_rate_mbit=50.0)
    study = ReportData.load(tmp_path)
    baselines = study.table.groupby("backend").baseline.unique()
    assert baselines["sim"].tolist() == ["allreduce, simulated"]
    assert baselines["gloo"].tolist() == ["torch_ddp, gloo"]
    for section in (
        time_to_accuracy.section,
        bytes_sent.section,
        exposed_communication.section,
    ):
        finding = section(study).finding
        assert finding.startswith("Simulated: ") and " Measured: " in finding
    cells = time_to_accuracy.section(study).tables["time_to_accuracy"].cells
    assert set(cells["backend"]) == {"simulated", "gloo"}
    assert "6 simulated and 9 measured" in overview.section(study).finding


def test_a_simulated_study_says_so(tmp_path):
    write_run(tmp_path / "a", backend="sim")
    study = ReportData.load(tmp_path)
    assert time_to_accuracy.section(study).finding.startswith("Simulated: ")
    figure = time_to_accuracy.section(study).figures["time_to_accuracy"]
    assert "simulated" in figure.get_suptitle()


def test_workers_that_share_a_gpu_make_no_claim_on_time(tmp_path):
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", "torch_ddp", seed=seed)
        write_run(tmp_path / f"b{seed}", "bytegrad", seed=seed, shared_gpu=True)
    study = ReportData.load(tmp_path)
    section = time_to_accuracy.section(study)
    assert section.finding.startswith("torch_ddp reaches")
    page = section.tables["time_to_accuracy"]
    assert page.cells["time to accuracy (s)"][1] == "shared GPU"
    [row] = page.numbers[page.numbers.shared_gpu].to_dict("records")
    assert math.isnan(row["time_to_accuracy_s"]) and math.isnan(row["speedup"])
    assert row["reached"] == 1
    assert "3 runs of workers that shared a GPU" in " ".join(overview.section(study).notes)
    curves = way_to_accuracy.section(study).figures
    lines = {
        name: {line.get_label() for panel in figure.axes for line in panel.get_lines()}
        for name, figure in curves.items()
    }
    assert "bytegrad" not in lines["accuracy_over_time"]
    assert "bytegrad" in lines["accuracy_over_steps"] & lines["accuracy_over_bytes"]


def test_findings_are_of_the_data(folder, study, tmp_path):
    finding = time_to_accuracy.section(study).finding
    firsts = defaultdict(int)
    for _, rows in study.table.groupby("net"):
        firsts[rows["name"].iloc[0]] += 1
    assert finding.startswith("Of 4 situations, first is ")
    for name, number in firsts.items():
        assert f"{name} in {number}" in finding
    assert best_over_networks.section(study).finding.count(" is first on ") == len(firsts)
    assert incomplete.section(study).finding == "1 run diverged and 1 run failed."
    status = study.runs.status.mask(study.runs.status == "failed", AT_WORK)
    at_work = incomplete.section(replace(study, runs=study.runs.assign(status=status)))
    assert at_work.finding == "1 run diverged and 1 run has not ended."
    assert set(at_work.tables["incomplete"].cells["status"]) == {"diverged", "not ended"}
    for module in SECTIONS:
        assert module.section(study).finding.endswith(".")


def test_every_algorithm_has_one_colour_in_all_figures(study):
    colours = defaultdict(set)
    for figure in way_to_accuracy.section(study).figures.values():
        for panel in figure.axes:
            for line in panel.get_lines():
                assert line.get_label() in {*ALGOS, "target", "ended early"}
                colours[line.get_label()].add(str(line.get_color()))
    drawn = ALGOS & colours.keys()
    assert len(drawn) > 4 and all(len(colours[algo]) == 1 for algo in drawn)
    assert len({colour for algo in drawn for colour in colours[algo]}) == len(drawn)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"status": "failed", "reason": "worker 1 died"},
        {"status": "diverged", "num_rows": 1},
        {"limit": 0.5},
        {"target_accuracy": None, "time_to_accuracy_s": None},
        {"shared_gpu": True},
        {"asked_rate_mbit": None, "achieved_rate_mbit": None},
        {"steps": None, "bytes_sent_per_worker": None, "exposed_communication_s": None},
        {"bytes_sent_per_worker": 0, "time_to_accuracy_s": 0.0},
    ],
)
def test_one_run_of_any_kind_is_reported(tmp_path, fields):
    write_run(tmp_path / "runs" / "run", **fields)
    study = ReportData.load(tmp_path / "runs")
    for module in SECTIONS:
        module.section(study).save(tmp_path)
    assert (tmp_path / "time_to_accuracy.md").read_text().count("\n| ") == 3


def test_a_summary_of_little_more_than_an_algorithm_is_reported(tmp_path):
    write_run(tmp_path / "run")
    summary = {"algo": "allreduce", "status": "failed"}
    (tmp_path / "run" / "summary.json").write_text(json.dumps(summary))
    study = ReportData.load(tmp_path)
    for module in SECTIONS:
        module.section(study).save(tmp_path)
    assert "The runs have no target" in time_to_accuracy.section(study).finding


def test_no_run_is_a_users_error(tmp_path):
    with pytest.raises(UserError, match="There is no run in"):
        ReportData.load(tmp_path)


def test_what_cannot_be_read_is_named_and_skipped(tmp_path):
    write_run(tmp_path / "sound")
    for name in ("half", "foreign", "torn", "traced", "endless", "renamed"):
        write_run(tmp_path / name)
    (tmp_path / "half" / "summary.json").write_text('{"algo": "allr')
    (tmp_path / "foreign" / "summary.json").write_text('{"name": "a package"}')
    (tmp_path / "endless" / "summary.json").write_text(
        '{"algo": "a", "status": "completed", "steps": Infinity}'
    )
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["step", "step"])
    parquet.write_table(twice, tmp_path / "renamed" / "metrics.parquet")
    (tmp_path / "torn" / "metrics.parquet").write_bytes(b"PAR1")
    (tmp_path / "torn" / "config.yaml").write_text("{:")
    (tmp_path / "torn" / "environment.json").write_bytes(b"\xff")
    study = ReportData.load(tmp_path)
    assert len(study.runs) == 4
    section = incomplete.section(study)
    assert section.finding == "5 files could not be read."
    said = " ".join(section.notes)
    assert all(
        str(tmp_path / name) in said for name in ("half", "foreign", "torn", "endless", "renamed")
    )
    for module in SECTIONS:
        module.section(study).save(tmp_path)


def test_each_panel_shows_its_first_three_whoever_is_good_elsewhere(tmp_path):
    for net in NETS:
        for bits in range(12):
            time_s = 30.0 - bits if net == "wan" else 10.0 + bits
            options = {"net": net, "options": {"bits": bits}, "num_rows": 2, "target_accuracy": 0.4}
            write_run(tmp_path / f"{net}_{bits}", time_to_accuracy_s=time_s, **options)
    best = {net: (0, 1, 2, 3, 4) for net in NETS} | {"wan": (11, 10, 9, 8, 7)}
    study = ReportData.load(tmp_path)
    assert all(study.table.groupby("net").is_best_baseline.sum() == 1)
    for net, rows in study.drawn().table.groupby("net"):
        assert set(rows.label) == {f"allreduce bits={bits}" for bits in best[str(net)]}


def test_waiting_for_more_than_all_of_the_time_is_no_share(tmp_path):
    write_run(tmp_path / "a", exposed_communication_s=1e9)
    write_run(tmp_path / "b", "bytegrad")
    section = exposed_communication.section(ReportData.load(tmp_path))
    assert "bytegrad" in section.finding or "waits for communication for" in section.finding
    assert "allreduce" not in section.finding
    assert section.notes[0].startswith("Some records count what their evaluations sent")
    assert "-" in section.tables["exposed_communication"].cells["of the training time"]


def test_many_situations_and_algorithms_are_drawn_in_part_and_said_to_be(tmp_path):
    for workers in range(2, 16):
        for bits in range(12):
            folder = tmp_path / f"{workers}_{bits}"
            write_run(folder, workers=workers, options={"bits": bits}, num_rows=2)
    study = ReportData.load(tmp_path)
    drawn = study.drawn()
    assert drawn.left_out == (
        "The figure leaves out 2 situations of 14, which the tables have. "
        "A panel of it shows the first 5 and the baseline, of up to 12 algorithms."
    )
    groups = list(drawn.groups())
    assert [len(group) for group in groups] == [5] * 12  # the baseline is the first, of no target
    assert len(drawn.runs) == 60
    assert len(study.table) == 168
    section = scaling.section(study)  # all numbers of workers are in one panel
    [panel] = section.figures["scaling"].axes
    *lines, _ideal = panel.get_lines()
    assert {len(line.get_xdata()) for line in lines} == {14}
    baselines = set(study.table.label[study.table.is_best_baseline])
    shown = {line.get_label() for line in lines}
    assert baselines <= shown and len(shown - baselines) <= 5 <= len(shown) < 12
    assert section.notes == [
        "A panel of it shows the first 5 and the baseline, of up to 12 algorithms."
    ]


def test_the_first_five_of_a_panel_and_the_baseline_are_drawn(tmp_path):
    nets = ("lan_1g", "wan", "slow_tcp")
    for net in nets:
        write_run(tmp_path / f"baseline_{net}", net=net, time_to_accuracy_s=500.0)
        for bits in range(12):
            time_s = 1.0 if (bits, net) == (11, "wan") else 10.0 + bits
            folder = tmp_path / f"{bits}_{net}"
            write_run(folder, "bytegrad", net, options={"bits": bits}, time_to_accuracy_s=time_s)
    for net, rows in ReportData.load(tmp_path).drawn().table.groupby("net"):
        bits = (11, 0, 1, 2, 3) if net == "wan" else range(5)
        assert list(rows.label) == [*(f"bytegrad bits={b}" for b in bits), "allreduce"]


def test_a_baseline_is_known_by_its_class_wherever_it_was_when_recorded(tmp_path):
    write_run(tmp_path / "run", "torch_ddp")
    config = tmp_path / "run/config.yaml"
    assert "experiments.training.torch_ddp.TorchDDP" in config.read_text()
    config.write_text(
        config.read_text().replace("experiments.training.torch_ddp", "experiments.baselines")
    )
    assert ReportData.load(tmp_path).table.is_baseline.all()


def test_a_target_of_loss_is_followed_everywhere(tmp_path):
    """The lower the better: the same runs as by accuracy are first, with the loss in its place."""
    for target in (Target(metric="loss", value=0.2), Target(value=TARGET)):
        for algo, seed in product(("allreduce", "local_sgd", "bytegrad"), range(3)):
            run = tmp_path / target.metric / f"{algo}_{seed}"
            write_run(run, algo, seed=seed, target=target, limit=0.98 if seed else 0.88)
    by_loss = ReportData.load(tmp_path / "loss")
    by_accuracy = ReportData.load(tmp_path / "accuracy").table
    for column in ("name", "place", "missed"):
        assert list(by_loss.table[column]) == list(by_accuracy[column])
    for column in ("steps_to_accuracy", "times_s"):
        pairs = zip(by_loss.table[column], by_accuracy[column], strict=True)
        assert all(own == pytest.approx(other) for own, other in pairs)
    np.testing.assert_allclose(by_loss.table.validation_score, 1.1 - by_accuracy.validation_score)
    cells = time_to_accuracy.section(by_loss).tables["time_to_accuracy"]
    assert "time to target (s)" in cells.cells and "accuracy" not in cells.markdown()
    end = final_accuracy.section(by_loss)
    assert "final loss (test), interval" in end.tables["final_accuracy"].cells
    assert end.finding.startswith("Loss at most the fastest baseline's")
    panel = way_to_accuracy.section(by_loss).figures["accuracy_over_time"].axes[0]
    assert panel.get_ylabel() == "validation loss"
    assert panel.get_ylim()[0] < 0.2 < panel.get_ylim()[1]
    mixed = ReportData.load(tmp_path)
    assert set(mixed.table.target) == {"loss 0.2", "accuracy 0.9"}
    headers = final_accuracy.section(mixed).tables["final_accuracy"].cells
    assert "final score (test), interval" in headers


def test_who_is_first_at_other_targets(folder, study):
    page = time_against_target.section(study).tables["time_against_target"]
    numbers = page.numbers.set_index(["net", "points"])
    assert len(numbers) == len(NETS) * len(time_against_target.POINTS)
    broken = {"bytegrad_wan_s1", "local_sgd_lan_1g_s2"}
    for (net, points), row in numbers.iterrows():
        ends = study.table.query("net == @net and label == @row.baseline").validation_score
        target = ends.iloc[0] - points / 100
        assert row.other_target == pytest.approx(target)
        medians = {}
        for algo in ALGOS:
            runs = [f"{algo}_{net}_s{seed}" for seed in range(3)]
            there = [None if run in broken else run_at_target(folder, run, target) for run in runs]
            times_s = [math.inf if own is None else own["time_s"] for own in there]
            medians[algo] = statistics.median(times_s)
        assert medians[row["first"]] == min(medians.values())
        assert row.seconds == pytest.approx(medians[row["first"]])
    wide = pd.DataFrame(time_against_target.section(study).tables["first_over_targets"].cells)
    assert sorted(wide.network) == sorted(NETS)
    for row in wide.to_dict("records"):
        tied = page.cells["ties with the first"]
        own = [k for k, net in enumerate(page.cells["network"]) if net == row["network"]]
        for k, points in zip(own, time_against_target.POINTS, strict=True):
            assert row[f"{points:g} below"].split(" (")[0] == page.cells["first"][k]
            num = 0 if tied[k] == "-" else len(tied[k].replace(" and ", ", ").split(", "))
            assert (f"(ties: {num})" in row[f"{points:g} below"]) == bool(num)
        always = [
            {page.cells["first"][k], *tied[k].replace(" and ", ", ").split(", ")} for k in own
        ]
        expected = set.intersection(*always) - {"-"}
        assert set(row["at all of them"].replace(" and ", ", ").split(", ")) - {"-"} == expected


def test_an_option_that_all_runs_have_alike_names_no_algorithm(tmp_path):
    write_run(tmp_path / "allreduce", "allreduce")
    write_run(tmp_path / "bytegrad", "bytegrad")
    files = [tmp_path / name / "config.yaml" for name in ("allreduce", "bytegrad")]
    for file in files:
        file.write_text(file.read_text() + "streams: 8\n")
    assert set(ReportData.load(tmp_path).table.name) == {"allreduce", "bytegrad"}
    files[1].write_text(files[1].read_text().replace("streams: 8", "streams: 4"))
    names = {"allreduce streams=8", "bytegrad streams=4"}
    assert set(ReportData.load(tmp_path).table.name) == names


def test_a_run_whose_number_of_workers_changed_is_told_apart(tmp_path):
    changes = [{"after_step": 0, "workers": 4}, {"after_step": 60, "workers": 1}]
    for seed in range(3):
        write_run(tmp_path / f"a{seed}", "torch_ddp", seed=seed)
    write_run(tmp_path / "elastic", "bytegrad", workers=1, workers_over_time=changes)
    study = ReportData.load(tmp_path)
    assert set(study.runs.algo) == set(study.table.algo) == {"torch_ddp"}
    section = incomplete.section(study)
    assert "1 run compared with none" in section.finding
    [note] = section.notes
    assert "elastic: bytegrad on wan, completed, is compared with no other run" in note
    assert "(4 workers, 1 after step 60): its target took" in note
