"""Records whose disk fills up in the middle of a write."""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet

from experiments.runs.records import RunFolder
from experiments.runs.summary import Summary, read_summary
from experiments.training.metrics import MetricsRow
from host.errors import DiskError

CONFIG = {"seed": 3}
START = Summary(algo="bytegrad", net="wan", task="digits", workers=4, seed=3)
ROW = MetricsRow(kind="step", step=1, time_s=0.5)


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_record_that_cannot_be_begun_leaves_nothing_but_what_is_anothers(tmp_path, monkeypatch):
    (tmp_path / "notes.txt").write_text("mine")
    monkeypatch.setattr("experiments.runs.records.environment", full)  # after summary and config
    with pytest.raises(DiskError):
        RunFolder.create(tmp_path, CONFIG, START)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_first_file_that_is_written_in_part_is_not_left(tmp_path, monkeypatch):
    def write_a_part(file, text):
        file.write_bytes(text.encode()[:5])
        full()

    monkeypatch.setattr(Path, "write_text", write_a_part)
    with pytest.raises(DiskError):
        RunFolder.create(tmp_path, CONFIG, START)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("part", [b"PAR1", None])
def test_a_table_that_finds_no_room_leaves_the_journal(part, tmp_path, monkeypatch):
    run = RunFolder.create(tmp_path, CONFIG, START)
    run.log(ROW)

    def write_a_part(table, path):
        if part is not None:
            Path(path).write_bytes(part)
        full()

    monkeypatch.setattr(parquet, "write_table", write_a_part)
    run.finish(replace(START, status="completed"))
    assert read_summary(tmp_path).status == "completed"
    names = {"config.yaml", "environment.json", "metrics.jsonl", "summary.json"}
    assert {file.name for file in tmp_path.iterdir()} == names
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["step"] == 1


@pytest.mark.parametrize("changes", [None, [{"after_step": 0, "workers": 2}]])
def test_the_configuration_begins_with_the_number_of_workers_over_time_if_it_changed(
    changes, tmp_path
):
    RunFolder.create(tmp_path, CONFIG, replace(START, workers_over_time=changes))
    first = (tmp_path / "config.yaml").read_text().splitlines()[0]
    assert first == ("# 2 workers" if changes else "seed: 3")


def test_each_restart_counts_and_the_end_keeps_the_count(tmp_path):
    RunFolder.create(tmp_path, CONFIG, START)
    for num_restarts in (1, 2, 3):
        run = RunFolder.reopen(tmp_path, CONFIG, START, [], [ROW])
        assert read_summary(tmp_path).restarts == num_restarts
    run.finish(replace(START, status="completed", restarts=None))
    assert (read_summary(tmp_path).status, read_summary(tmp_path).restarts) == ("completed", 3)
