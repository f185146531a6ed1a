"""A disk that is full, read-only or gone: one sentence, and what was written before it stays."""

import json
import shutil

import pytest
import torch

from experiments.runs.load import load_rows
from experiments.runs.records import RESERVE, RunFolder
from experiments.runs.study import Standing, read_record
from experiments.runs.summary import DISK, Summary, read_summary
from experiments.training.checkpoints.checkpoint import Checkpoints
from experiments.training.checkpoints.places import newest
from experiments.training.metrics import MetricsRow
from host.errors import DiskError
from host.processes import run_in_child
from tests import app, small_disk

SIZE = 200_000
START = Summary(algo="bytegrad", net="wan", workers=2, seed=0)
END = Summary(**vars(START) | {"status": "failed", "reason": f"{DISK}it is full"})


@pytest.fixture(autouse=True)
def _mounts():
    small_disk.skip_without_mounts()


def on_small_disk(folder, act):
    """What `act` returns in a child whose disk at `folder` is small."""

    def work():
        small_disk.mount(folder, SIZE)
        return act()

    return run_in_child(work, doing="writing")


def row(step):
    return MetricsRow(kind="step", step=step, time_s=float(step), loss=1.0)


def test_a_full_disk_keeps_what_was_logged_and_the_record_says_why(tmp_path):
    def act():
        run = RunFolder.create(tmp_path / "run", {"seed": 0}, START)
        run.log(row(1))
        small_disk.fill(tmp_path)
        said, step = None, 1
        while said is None:
            step += 1
            try:
                run.log(row(step))
            except DiskError as error:
                said = str(error)
        assert (run.path / "metrics.jsonl").read_text().endswith("}\n")  # no part of a row
        run.finish(END)
        record = read_record(run.path, is_held=False)
        return said, step, load_rows(run.path), read_summary(run.path), record

    said, step, rows, summary, record = on_small_disk(tmp_path, act)
    assert f"{tmp_path}/run cannot be written (No space left on device): make room there" in said
    assert [row.step for row in rows] == list(range(1, step))
    assert summary.reason == END.reason
    assert record.standing is Standing.INTERRUPTED  # the same sweep runs it again


def test_the_last_complete_checkpoint_stays(tmp_path):
    def act():
        (tmp_path / "run").mkdir()
        own = Checkpoints(tmp_path / "run", 0, 1)
        own.save(1, {"weights": torch.zeros(20_000)})
        with pytest.raises(DiskError, match=r"step_00000002/0_of_1\.pt cannot be written"):
            own.save(2, {"weights": torch.zeros(40_000)})
        files = [str(file.name) for file in (tmp_path / "run").rglob("*") if file.is_file()]
        return newest(tmp_path / "run"), own.load(1)["weights"].shape, files

    step, shape, files = on_small_disk(tmp_path, act)
    assert (step, shape) == (1, (20_000,))
    assert files == ["0_of_1.pt"]  # nothing half-written


def test_a_run_that_finds_no_room_leaves_nothing(tmp_path):
    def act():
        small_disk.fill(tmp_path)
        with pytest.raises(DiskError):
            RunFolder.create(tmp_path / "run", {"seed": 0}, START)
        return [file.name for file in (tmp_path / "run").iterdir()]

    assert on_small_disk(tmp_path, act) == []


def test_a_disk_that_becomes_read_only(tmp_path):
    def act():
        run = RunFolder.create(tmp_path / "run", {"seed": 0}, START)
        run.log(row(1))
        small_disk.make_read_only(tmp_path)
        for write in (lambda: run.log(row(2)), lambda: run.finish(END)):
            with pytest.raises(DiskError, match=r"\(Read-only file system\): have it mounted"):
                write()
        return [row.step for row in load_rows(run.path)]

    assert on_small_disk(tmp_path, act) == [1]


def test_a_folder_that_is_deleted_does_not_come_back_in_part(tmp_path):
    run = RunFolder.create(tmp_path / "run", {"seed": 0}, START)
    shutil.rmtree(tmp_path / "run")
    own = Checkpoints(tmp_path / "run", 0, 1)
    for write in (lambda: run.log(row(1)), lambda: run.finish(END), lambda: own.save(1, {})):
        with pytest.raises(DiskError, match=r"\(No such file or directory\): leave its folder"):
            write()
    assert list(tmp_path.iterdir()) == []


def test_the_reserve_is_gone_from_what_has_ended(tmp_path):
    run = RunFolder.create(tmp_path / "run", {"seed": 0}, START)
    assert (run.path / RESERVE).stat().st_size > 10_000
    run.finish(END)
    assert not (run.path / RESERVE).exists()


@pytest.mark.root
def test_a_run_of_workers_ends_in_one_sentence(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ("algo=allreduce", "net=none", "workers=2", "model=mlp", "max_steps=30", "eval_every=5")
    ended = app.run(
        *(disk, 9_000_000, "experiments.__main__", *words, "checkpoint_every=10"),
        f"hydra.run.dir={disk}/run",
        module="tests.small_disk",
    )
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert ended.stderr.count("\n") == 1
    assert "of_2.pt cannot be written (No space left on device): make room there" in ended.stderr
    copy = tmp_path / "disk.copy" / "run"
    assert newest(copy) == 10
    assert json.loads((copy / "summary.json").read_text())["reason"].startswith(DISK)
    assert [row.step for row in load_rows(copy) if row.is_evaluation][:2] == [5, 10]
