import re

import pytest

from experiments.commands.checks import prediction_error as command
from experiments.report.statistics import prediction_error
from experiments.validation import prediction_error as module
from experiments.validation.prediction_error import (
    NETS,
    first_places,
    seconds_a_step,
    times_to_accuracy,
)
from host.errors import UserError
from tests.experiments import recorded
from tests.experiments.recorded import write_run

ERROR = round(100 * prediction_error(100))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Real runs, and simulated ones of half their times, but for one."""
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorded, "NETS", dict.fromkeys(NETS, 100.0))
        for algo in ("allreduce", "bytegrad", "local_sgd"):
            for net in NETS:
                real = write_run(root / f"real/{algo}_{net}", algo, net)
                write_run(root / f"real/{algo}_{net}_1", algo, net, seed=1)
                share = 1.5 if (algo, net) == ("local_sgd", "none") else 0.5
                seconds = share * real["time_to_accuracy_s"]
                write_run(
                    *(root / f"sim/{algo}_{net}", algo, net),
                    **{"time_to_accuracy_s": seconds, "backend": "sim"},
                    steps_per_s=real["steps_per_s"] / share,
                )
    return root / "real", root / "sim"


def test_times_are_predicted_over_measured(folders):
    lines = times_to_accuracy(*folders).splitlines()
    assert lines[0] == f"| algorithm | {' | '.join(NETS)} |"
    rows = {line.split(" | ")[0].strip("| *"): line.split(" | ")[1:] for line in lines[2:]}
    assert rows["local_sgd"][0] == "1.50" and rows["local_sgd"][1] == "0.50"
    assert rows["mean absolute error"][:2] == ["50 %", "50 %"]
    assert rows["Kendall's tau of the orders"][1] == "1.00"
    assert rows["first, measured"][0] == "local_sgd"


def test_seconds_a_step_are_real_then_simulated(folders, tmp_path):
    write_run(tmp_path / "real", "bytegrad", steps_per_s=4.0)
    write_run(tmp_path / "sim", "bytegrad", steps_per_s=8.0, backend="sim")
    assert seconds_a_step(tmp_path, tmp_path).splitlines() == [
        *("| algorithm | real | simulated | ratio |", "| --- | ---: | ---: | ---: |"),
        "| bytegrad | 0.250 | 0.125 | 0.50 |",
    ]


def test_first_places_agree_tie_or_differ(folders, tmp_path):
    """Local SGD is first everywhere but where its predicted time is 1.5 times the real one. There
    ByteGrad is, whose real times do not tie with it; nor do they by the error on that network.
    """
    lines = first_places(*folders).splitlines()
    rows = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ") for line in lines[2:]}
    assert list(rows) == list(NETS)
    for net in NETS[1:]:
        assert rows[net][1] == rows[net][3] == "local_sgd" and rows[net][-1] == "agree"
    assert [rows["none"][k] for k in (1, 3, 6)] == ["local_sgd", "bytegrad", "differ"]


@pytest.mark.parametrize(
    ("others", "foreseen", "verdict"),
    [
        ((2.1, 2.0, 1.9), (1.0, 1.5), "tie, measured"),
        (
            (4.1, 4.0, 3.9),
            (1.2, 1.2 + 0.6 * prediction_error(100)),
            f"tie, within the error of {100 * prediction_error(100):.0f} %",
        ),
        ((4.1, 4.0, 3.9), (1.0, 1.5), "differ"),
    ],
)
def test_what_is_first_in_simulation_ties_by_measured_or_by_predicted_times(
    others, foreseen, verdict, tmp_path, monkeypatch
):
    """All-reduce is first really, ByteGrad in simulation."""
    monkeypatch.setattr(recorded, "NETS", {"slow_tcp": 100.0})
    monkeypatch.setattr(module, "NETS", ("slow_tcp",))
    for algo, times in {"allreduce": (2.0, 1.95, 1.9), "bytegrad": others}.items():
        for seed, time_s in enumerate(times):
            folder = tmp_path / f"real/{algo}_{seed}"
            write_run(folder, algo, "slow_tcp", seed=seed, time_to_accuracy_s=time_s)
    for algo, time_s in zip(("bytegrad", "allreduce"), foreseen, strict=True):
        folder = tmp_path / f"sim/{algo}"
        write_run(folder, algo, "slow_tcp", backend="sim", time_to_accuracy_s=time_s)
    line = first_places(tmp_path / "real", tmp_path / "sim").splitlines()[-1]
    assert line.strip("| ").split(" | ")[-1] == verdict


@pytest.mark.parametrize(
    ("rate_mbit", "of_net"),
    [
        (100.0, {}),
        (1000.0, {}),
        (1000.0, {"nodes": {"size": 2, "between": {"rate_mbit": 100, "delay_ms": 10}}}),
        (1000.0, {"workers": {0: {"rate_mbit": 10}}}),
    ],
)
def test_the_error_is_that_of_the_slowest_link(rate_mbit, of_net, tmp_path, monkeypatch):
    """The second is more off than such predictions are at 100 Mbit/s, less than at 1 Gbit/s."""
    slow, fast = prediction_error(100), prediction_error(1000)
    assert slow < fast
    monkeypatch.setattr(recorded, "NETS", {"some": rate_mbit})
    monkeypatch.setattr(module, "NETS", ("some",))
    foreseen = {"bytegrad": 1.0, "allreduce": 1 + (slow + fast) / 2}
    for k, algo in enumerate(("allreduce", "bytegrad")):
        for seed in range(3):
            folder = tmp_path / f"real/{algo}_{seed}"
            own = {"time_to_accuracy_s": 2.0 * (1 + k) + seed / 100, "of_net": of_net}
            write_run(folder, algo, "some", seed=seed, **own)
        own = {"backend": "sim", "time_to_accuracy_s": foreseen[algo], "of_net": of_net}
        write_run(tmp_path / f"sim/{algo}", algo, "some", **own)
    [[*_, verdict]] = cells(first_places(tmp_path / "real", tmp_path / "sim")).values()
    is_fast = rate_mbit == 1000 and not of_net
    assert verdict == (f"tie, within the error of {100 * fast:.0f} %" if is_fast else "differ")


def cells(text):
    """The cells of each row behind the first, by that."""
    rows = (line.strip("| ").split(" | ") for line in text.splitlines()[2:])
    return {name.strip("*"): own for name, *own in rows}


def test_a_miss_is_no_ratio_and_where_all_miss_nobody_is_first(tmp_path, monkeypatch):
    monkeypatch.setattr(recorded, "NETS", dict.fromkeys(("some", "real", "all"), 100.0))
    monkeypatch.setattr(module, "NETS", ("some", "real", "all"))
    missing = {("bytegrad", "gloo", "some")} | {
        (algo, backend, net)
        for algo in ("allreduce", "bytegrad")
        for backend, net in (("gloo", "real"), ("gloo", "all"), ("sim", "all"))
    }
    for algo, time_s in (("allreduce", 2.0), ("bytegrad", 3.0)):
        for backend, net in ((b, n) for b in ("gloo", "sim") for n in module.NETS):
            took_s = None if (algo, backend, net) in missing else time_s
            fields = {"backend": backend, "time_to_accuracy_s": took_s}
            write_run(tmp_path / backend / f"{algo}_{net}", algo, net, **fields)
    folders = tmp_path / "gloo", tmp_path / "sim"
    times = cells(times_to_accuracy(*folders))
    assert times["allreduce"] == ["1.00", "missed, measured", "both missed"]
    assert times["bytegrad"] == ["missed, measured", "missed, measured", "both missed"]
    assert times["median"] == ["1.00", "-", "-"]
    assert times["mean absolute error"] == ["0 %", "-", "-"]
    assert times["Kendall's tau of the orders"] == ["1.00", "-", "-"]
    assert times["first, measured"] == ["allreduce", "-", "-"]
    assert times["first, predicted"] == ["allreduce", "allreduce", "-"]
    assert cells(first_places(*folders)) == {
        "some": ["allreduce", "2.00", "allreduce", "2.00", "2.00", "agree"],
        "real": ["-", "-", "allreduce", "2.00", "missed", "differ"],
        "all": ["-", "-", "-", "-", "-", "all missed"],
    }


def test_a_run_that_took_no_step_has_no_seconds_of_one(tmp_path):
    for algo in ("allreduce", "bytegrad"):
        failed = {"status": "failed", "steps_per_s": None} if algo == "bytegrad" else {}
        write_run(tmp_path / "real" / algo, algo, **failed | {"backend": "gloo"})
        write_run(tmp_path / "sim" / algo, algo, backend="sim", steps_per_s=4.0)
    assert cells(seconds_a_step(tmp_path / "real", tmp_path / "sim"))["bytegrad"] == [
        *("-", "0.250", "-")
    ]


def test_folders_without_such_runs_are_refused(folders, tmp_path):
    write_run(tmp_path / "run", net="wan")
    with pytest.raises(UserError, match="of real workers, seed 0, on none, lan_1g, slow_tcp, loss"):
        times_to_accuracy(tmp_path, folders[1])
    for make in (times_to_accuracy, first_places):
        with pytest.raises(UserError, match="real has no run of simulated workers"):
            make(folders[0], folders[0])
    with pytest.raises(UserError, match="no run of simulated workers"):
        seconds_a_step(tmp_path, tmp_path)


@pytest.mark.parametrize("make", [times_to_accuracy, first_places])
def test_one_folder_may_hold_both(make, folders):
    root = folders[0].parent
    assert make(root, root) == make(*folders)


def test_what_was_not_both_measured_and_predicted_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "NETS", ("wan",))
    for algo in ("allreduce", "bytegrad", "torch_ddp"):
        write_run(tmp_path / f"real/{algo}", algo)
    for algo in ("allreduce", "bytegrad", "local_sgd"):
        write_run(tmp_path / f"sim/{algo}", algo, backend="sim", time_to_accuracy_s=0.5)
    folders = tmp_path / "real", tmp_path / "sim"
    for make in (times_to_accuracy, seconds_a_step):
        names = [line.split(" | ")[0].strip("| ") for line in make(*folders).splitlines()[2:]]
        assert sorted(name for name in names if "*" not in name) == ["allreduce", "bytegrad"]
    assert "torch_ddp" not in first_places(*folders) and "local_sgd" not in first_places(*folders)
    for make in (times_to_accuracy, seconds_a_step, first_places):
        with pytest.raises(UserError, match="no algorithm has real runs in"):
            make(tmp_path / "real/torch_ddp", tmp_path / "sim/local_sgd")


def test_several_runs_of_an_algorithm_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "NETS", ("wan",))
    for k, target in enumerate((0.8, 0.9)):
        write_run(tmp_path / f"real_{k}", target_accuracy=target)
        write_run(tmp_path / f"sim_{k}", target_accuracy=target, backend="sim")
    for make in (times_to_accuracy, first_places):
        with pytest.raises(UserError, match="has several settings of allreduce on wan: give"):
            make(tmp_path, tmp_path)
    with pytest.raises(UserError, match="has several runs of allreduce: give a folder with one"):
        seconds_a_step(tmp_path, tmp_path)


def test_the_file_is_written(folders, tmp_path, monkeypatch, capsys):
    file = tmp_path / "table.md"
    monkeypatch.setattr("sys.argv", ["", *map(str, folders), "--out", str(file)])
    assert command.main() == 0
    assert file.read_text() == times_to_accuracy(*folders)
    assert capsys.readouterr().out == f"{file}\n"


UNLIKE = [
    ({}, {"workers": 64}, "workers (4, 64)"),
    ({}, {"task": "fashion_mnist"}, "task (fashion_mnist, mnist5k)"),
    ({}, {"model": "gpt"}, "model (cnn, gpt)"),
    ({"of_model": {"hidden": 8}}, {"of_model": {"hidden": 9}}, "model.hidden (8, 9)"),
    ({"of_net": {"delay_ms": 5}}, {"of_net": {"delay_ms": 6}}, "net.delay_ms (5, 6)"),
    ({"options": {"bits": 8}}, {"options": {"bits": 2}}, "bits (2, 8)"),
    ({}, {"optim": "adamw"}, "optim (adamw, sgd)"),
    ({"of_run": {"eval_every": 5}}, {"of_run": {"eval_every": 9}}, "eval_every (5, 9)"),
    ({"of_run": {"accumulate": 1}}, {"of_run": {"accumulate": 4}}, "accumulate (1, 4)"),
]


@pytest.mark.parametrize("make", [times_to_accuracy, seconds_a_step, first_places])
@pytest.mark.parametrize(("real", "simulated", "said"), UNLIKE)
def test_unlike_runs_are_no_measurement_and_its_prediction(
    make, real, simulated, said, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "NETS", ("wan",))
    write_run(tmp_path / "real/a", "bytegrad", **real)
    write_run(tmp_path / "sim/a", "bytegrad", backend="sim", **simulated)
    with pytest.raises(UserError, match=f"^the runs.* differ in {re.escape(said)}: compare like"):
        make(tmp_path / "real", tmp_path / "sim")


def test_a_step_on_another_network_is_refused(tmp_path):
    write_run(tmp_path / "real", net="wan")
    write_run(tmp_path / "sim", net="lan_1g", backend="sim")
    with pytest.raises(UserError, match=r"^the runs of allreduce differ in net \(lan_1g, wan\)"):
        seconds_a_step(tmp_path, tmp_path)


@pytest.mark.parametrize("make", [times_to_accuracy, first_places])
def test_algorithms_of_one_table_are_compared_on_one_task_target_and_network(
    make, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "NETS", ("wan",))
    for said, fields in {
        "the runs differ in workers (2, 4)": {"workers": 2},
        "the runs differ in target (accuracy 0.8, accuracy 0.9)": {"target_accuracy": 0.8},
        "the runs on wan differ in net.delay_ms (7, None)": {"of_net": {"delay_ms": 7}},
    }.items():
        root = tmp_path / "_".join(fields)
        for backend in ("gloo", "sim"):
            write_run(root / backend / "a", backend=backend)
            write_run(root / backend / "b", "bytegrad", backend=backend, **fields)
        with pytest.raises(UserError, match=f"^{re.escape(said)}: compare like runs$"):
            make(root, root)


@pytest.mark.parametrize("make", [times_to_accuracy, seconds_a_step, first_places])
def test_real_and_simulated_runs_differ_in_what_makes_them_so(make, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "NETS", ("wan",))
    real = {"of_run": {"backend": {"process_group": "gloo"}}, "of_net": {"backend": "netem"}}
    simulated = {"cluster": {"sharing": 8}, "of_run": {"profile": "a.yaml", "device": "cpu"}}
    for algo in ("allreduce", "bytegrad"):
        write_run(tmp_path / f"real/{algo}", algo, **real)
        write_run(tmp_path / f"sim/{algo}", algo, backend="sim", **simulated)
    assert "bytegrad" in make(tmp_path, tmp_path)
