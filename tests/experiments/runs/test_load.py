"""Many runs read back, and how far that is."""

import json
import math
import os
from dataclasses import asdict

import pandas as pd
import pytest
from pyarrow import parquet

from experiments.report.tuned import FILE, load_tunings
from experiments.runs.journal import line
from experiments.runs.load import (
    READING,
    check_runs,
    find_twins,
    load_config,
    load_rows,
    load_runs,
    load_runs_and_metrics,
    num_folders,
)
from experiments.runs.summary import Summary
from experiments.training.metrics import MetricsRow
from host.errors import UserError
from host.remaining import Work
from tests.experiments.recorded import write_run


class Counted(Work):
    """Knows how often something was done."""

    num_done = 0

    def done(self, size=1.0, line=""):
        super().done(size, line)
        self.num_done += 1


@pytest.mark.parametrize(("num_runs", "num_done"), [(3, 3), (200, 100)])
def test_reading_goes_on_by_the_run_or_by_the_hundredth(num_runs, num_done, tmp_path):
    for seed in range(num_runs):
        folder = tmp_path / f"{seed:03}"
        folder.mkdir()
        summary = Summary(algo="bytegrad", status="failed", seed=seed)
        (folder / "summary.json").write_text(json.dumps(asdict(summary)))
        row = MetricsRow(kind="step", step=seed, time_s=1.0)
        (folder / "metrics.jsonl").write_text(line(row))
    work = Counted({READING: 1.0})
    runs, metrics = load_runs_and_metrics(tmp_path, work)
    assert runs["seed"].tolist() == metrics["step"].tolist() == list(range(num_runs))
    assert (work.num_done, work.share, work.left_s) == (num_done, 1.0, 0.0)


@pytest.mark.parametrize(
    ("number", "told"),
    [
        ({"workers": 0}, "workers=0"),
        ({"steps": -1}, "steps=-1"),
        ({"time_to_accuracy_s": -5}, "time_to_accuracy_s=-5.0"),
        ({"bytes_sent_per_worker": -1}, "bytes_sent_per_worker=-1.0"),
        ({"time_to_accuracy_s": 0, "steps": 0}, None),
        ({"final_accuracy": 97}, "final_accuracy=97.0"),
        ({"validation_accuracy": -0.1}, "validation_accuracy=-0.1"),
        ({"exposed_communication_s": -3}, "exposed_communication_s=-3.0"),
        ({"asked_rate_mbit": -5}, "asked_rate_mbit=-5.0"),
        ({"time_to_accuracy_s": math.nan}, "time_to_accuracy_s=nan"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 0}, None),
        ({"lr_scale": -1}, "lr_scale=-1.0"),
        ({"lr_scale": 0}, "lr_scale=0.0"),
        ({"lr_scale": 1e-9}, None),
        *(({name: ""}, f"{name}=''") for name in ("algo", "net", "task", "model", "optim")),
    ],
)
def test_a_run_with_a_number_that_none_has_is_left_out(tmp_path, number, told):
    summary = write_run(tmp_path / "a")
    (tmp_path / "a" / "summary.json").write_text(json.dumps(summary | number))
    runs = load_runs(tmp_path)
    said = f"{tmp_path}/a is left out, its summary.json cannot be read: {told} is of no run."
    assert runs.attrs["problems"] == ([] if told is None else [said])
    assert len(runs) == (told is None)


@pytest.mark.parametrize(
    ("edited", "told"),
    [
        ({"workers": 4.7}, "workers=4.7"),
        ({"seed": True}, "seed=True"),
        ({"shared_gpu": "false"}, "shared_gpu='false'"),
        ({"seed": "0"}, "seed='0'"),
        ({"final_accuracy": "0.9"}, "final_accuracy='0.9'"),
        ({"net": 7}, "net=7"),
        ({"links": "ab"}, "links='ab'"),
        ({"workers": 4.0, "shared_gpu": False, "lr_scale": 1}, None),
    ],
)
def test_a_number_is_not_cut_and_a_word_is_no_truth_value(tmp_path, edited, told):
    summary = write_run(tmp_path / "a")
    (tmp_path / "a" / "summary.json").write_text(json.dumps(summary | edited))
    runs = load_runs(tmp_path)
    said = f"{tmp_path}/a is left out, its summary.json cannot be read: {told} is of no run."
    assert runs.attrs["problems"] == ([] if told is None else [said])
    assert len(runs) == (told is None)


@pytest.mark.parametrize(
    ("edited", "told"),
    [
        ({"status": "finished"}, "status='finished' is none of completed, ended early, diverged"),
        ({"metric": "acuracy"}, "there is no metric 'acuracy'"),
        ({"target_accuracy": 95}, "target_accuracy must be a fraction in"),
    ],
)
def test_a_status_or_target_that_no_run_has_is_left_out(tmp_path, edited, told):
    summary = write_run(tmp_path / "a")
    (tmp_path / "a" / "summary.json").write_text(json.dumps(summary | edited))
    runs = load_runs(tmp_path)
    assert runs.empty and told in runs.attrs["problems"][0]


LEARNS = {"shared_training": True}  # on every network the same
OTHERS = {
    "another seed": ({}, {"seed": 1}),
    "another network, which it learns on alike": (LEARNS, LEARNS | {"net": "slow_tcp"}),
    "that, and it misses": (LEARNS | {"limit": 0.5}, LEARNS | {"limit": 0.5, "net": "slow_tcp"}),
    "a longer one": ({}, {"num_rows": 40}),
    "a shorter one": ({}, {"num_rows": 15, "seed": 1}),
}


@pytest.mark.parametrize(("own", "other"), OTHERS.values(), ids=OTHERS)
def test_a_run_beside_the_metrics_of_another_one_is_left_out(tmp_path, own, other):
    folder = tmp_path / "runs" / "a"
    write_run(folder, **own)
    assert len(load_rows(folder)) == 40
    write_run(tmp_path / "b", **other)
    (tmp_path / "b" / "metrics.parquet").replace(folder / "metrics.parquet")
    write_run(tmp_path / "runs" / "good", seed=2)
    runs, metrics = load_runs_and_metrics(tmp_path / "runs")
    assert list(runs.folder) == list(metrics.folder.unique()) == [str(tmp_path / "runs" / "good")]
    said = "its metrics are another run's than its summary.json"
    assert metrics.attrs["problems"] == [f"{folder} is left out, {said}."]
    with pytest.raises(UserError, match=said):
        load_rows(folder)


@pytest.mark.parametrize(
    "edited",
    [
        {"time_to_accuracy_s": 0.5},
        {"time_to_accuracy_s": 9.9},
        {"time_to_accuracy_s": None},
        {"target_accuracy": 0.2},
        {"target_accuracy": 0.99},
    ],
    ids=str,
)
def test_a_time_that_is_not_that_of_its_own_rows_is_refused(tmp_path, edited):
    summary = write_run(tmp_path / "a")
    (tmp_path / "a" / "summary.json").write_text(json.dumps(summary | edited))
    runs, metrics = load_runs_and_metrics(tmp_path)
    said = "its metrics are another run's than its summary.json"
    assert runs.empty and metrics.attrs["problems"] == [f"{tmp_path}/a is left out, {said}."]


def test_a_time_whose_own_row_is_torn_is_believed(tmp_path):
    summary = write_run(tmp_path / "a")
    file = tmp_path / "a" / "metrics.parquet"
    rows = parquet.read_table(file).to_pylist()
    file.unlink()
    reached = next(
        i for i, row in enumerate(rows) if row["time_s"] == summary["time_to_accuracy_s"]
    )
    lines = [json.dumps({k: v for k, v in row.items() if v is not None}) for row in rows]
    lines[reached] = lines[reached][:20]
    (tmp_path / "a" / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    runs, metrics = load_runs_and_metrics(tmp_path)
    assert list(runs.time_to_accuracy_s) == [summary["time_to_accuracy_s"]]
    assert [f"line {reached + 1} cannot be read" in told for told in metrics.attrs["problems"]] == [
        True
    ]


def test_a_time_that_no_column_can_tell_is_believed(tmp_path):
    write_run(tmp_path / "a")
    file = tmp_path / "a" / "metrics.parquet"
    parquet.write_table(parquet.read_table(file).drop_columns(["accuracy"]), file)
    assert len(load_runs(tmp_path)) == len(load_runs_and_metrics(tmp_path)[0]) == 1


@pytest.mark.parametrize("num_lost", [1, 2, 39])
def test_metrics_of_which_the_last_are_lost_are_still_its_own(tmp_path, num_lost):
    write_run(tmp_path / "a")
    file = tmp_path / "a" / "metrics.parquet"
    rows = parquet.read_table(file)
    parquet.write_table(rows.slice(0, 40 - num_lost), file)
    runs, metrics = load_runs_and_metrics(tmp_path)
    assert (len(runs), len(metrics)) == (1, 40 - num_lost) and metrics.attrs["problems"] == []


def test_a_folder_whose_name_is_no_text_is_left_out_and_refused_as_a_root(tmp_path):
    odd = tmp_path / os.fsdecode(b"b\xfe")
    write_run(tmp_path / "a")
    odd.mkdir()
    (odd / "summary.json").write_text((tmp_path / "a" / "summary.json").read_text())
    (odd / FILE).write_text("{}")
    runs, metrics = load_runs_and_metrics(tmp_path)
    told = f"{tmp_path}/b\\xfe is left out, its name is not UTF-8."
    assert runs["folder"].tolist() == [str(tmp_path / "a")]
    assert runs.attrs["problems"] == metrics.attrs["problems"] == [told]
    assert load_tunings(tmp_path) == ([], [told.replace("xfe", f"xfe/{FILE}")])
    for read in (check_runs, load_runs):
        with pytest.raises(UserError, match=r"b\\xfe is not UTF-8"):
            read(odd)


def test_folders_of_runs_are_counted_however_deep_they_are(tmp_path):
    for name in ("a", "b/c", "b/d/e"):
        write_run(tmp_path / name)
    (tmp_path / "b" / "checkpoints").mkdir()
    assert num_folders(tmp_path) == 3


def test_twins_are_the_first_two_that_are_alike_in_all_keys():
    runs = pd.DataFrame(
        {
            "folder": ["d", "c", "b", "a", "e"],
            "algo": ["sgd", "sgd", "sgd", "adam", "sgd"],
            "seed": [1, 1, 0, 1, 1],
        }
    )
    one, other = find_twins(runs, ["algo", "seed"])
    assert (one.folder, other.folder) == ("c", "d")
    assert find_twins(runs, ["algo", "seed", "folder"]) is None


def test_the_configuration_of_a_run_is_what_it_was_run_with(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 3\nnames:\n  backend: gloo\n")
    assert load_config(tmp_path) == {"seed": 3, "names": {"backend": "gloo"}}
    (tmp_path / "config.yaml").write_text("seed: 3\n")  # the end is missing
    with pytest.raises(UserError, match="is no whole configuration of a run"):
        load_config(tmp_path)


def test_a_run_whose_number_of_workers_changed_has_a_sentence_and_no_row(tmp_path):
    changes = [{"after_step": 0, "workers": 4}, {"after_step": 60, "workers": 1}]
    write_run(tmp_path / "alike")
    reached = write_run(tmp_path / "elastic", workers_over_time=changes)
    write_run(tmp_path / "poor", limit=0.5, workers_over_time=changes)
    runs = load_runs(tmp_path)
    assert runs["folder"].tolist() == [str(tmp_path / "alike")]
    told = "its number of workers changed (4 workers, 1 after step 60)"
    assert [text.split(", since ")[1] for text in runs.attrs["apart"]] == [
        f"{told}: its target took {reached['time_to_accuracy_s']:.1f} s.",
        f"{told}: it missed its target.",
    ]


def test_a_run_that_went_on_over_another_network_has_a_sentence_and_no_row(tmp_path):
    options = ({"net.rate_mbit": 1000}, {"net.rate_mbit": 50})
    changes = [
        {"after_step": step, "net": net, "options": own}
        for step, net, own in zip((0, 60), ("lan_1g", "wan"), options, strict=True)
    ]
    workers = [{"after_step": 0, "workers": 4}, {"after_step": 60, "workers": 1}]
    write_run(tmp_path / "alike")
    write_run(tmp_path / "both", conditions_over_time=changes, workers_over_time=workers)
    write_run(tmp_path / "moved", conditions_over_time=changes)
    runs = load_runs(tmp_path)
    assert runs["folder"].tolist() == [str(tmp_path / "alike")]
    told = "its network or cluster changed (lan_1g, then wan after step 60)"
    both = f"its number of workers changed (4 workers, 1 after step 60) and {told}"
    sentences = [text.split(", since ")[1].split(": ")[0] for text in runs.attrs["apart"]]
    assert sentences == [both, told]


@pytest.mark.parametrize(("last", "beyond"), [(2**63 - 1, 2**63), (-(2**63), -(2**63) - 1)])
def test_a_whole_number_has_64_bits_at_most(last, beyond, tmp_path):
    rows = [{"kind": "step", "time_s": 1.0, "step": step} for step in (last, beyond)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [row.step for row in load_rows(tmp_path)] == [last]
