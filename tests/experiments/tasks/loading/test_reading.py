"""Who reads the examples changes no bit of what is learnt, and nobody is left behind."""

import multiprocessing
import os
import signal
import time
from multiprocessing import Pipe

import numpy as np
import pytest
import torch

from experiments.tasks.loading.reading import Loaders, Reading, Request, read_all
from experiments.tasks.own.splits import DatasetSplit
from experiments.tasks.own.stream import StreamSplit
from host.errors import Failure, UserError
from host.processes import fork
from tests.experiments.tasks.own.made import Broken, Lines, Points, Stream
from tests.experiments.training.stacked import rows_of

MADE = "tests.experiments.tasks.own.made"
WORDS = (
    *("algo=allreduce", "task=dataset", f"task.validation._target_={MADE}.Points", "net=none"),
    *("task.train.noise=0.5", "task.loss=mse_loss", "workers=3", "batch_size=4", "accumulate=2"),
    *("model._target_=torch.nn.Linear", "model.in_features=4", "model.out_features=1"),
    *("optim.lr=0.01", "max_steps=9", "eval_every=3", "log_every=1", "checkpoint_every=5"),
)
TWO = Loaders(number=2)


def learnt(rows):
    return [(row.kind, row.step, row.loss, row.validation_loss) for row in rows]


@pytest.mark.parametrize("kind", ["Points", "Stream"])
def test_processes_and_resuming_change_no_bit(kind, tmp_path):
    words = [*WORDS, f"task.train._target_={MADE}.{kind}"]
    plain = learnt(rows_of(words, tmp_path / "plain"))
    again = [*words, "data.loaders=2"]
    again += [f"resume={tmp_path / 'plain'}"] if kind == "Stream" else []
    expected = [row for row in plain if kind == "Points" or row[1] > 5]
    assert learnt(rows_of(again, tmp_path / "again")) == expected
    assert len(plain) == 12
    assert not multiprocessing.active_children()


def test_a_stream_comes_in_its_order_to_all_workers():
    split = StreamSplit(Stream(noise=1.0, shares=True))
    requests = [Request(np.array([[at, at + 1], [at + 60, at + 49]])) for at in range(0, 40, 8)]
    expected = [split.batch(request.indices_wb, seed=3) for request in requests]
    found = list(read_all(StreamSplit(Stream(noise=1.0, shares=True)), 3, TWO, requests))
    for (x, y), (own_x, own_y), request in zip(expected, found, requests, strict=True):
        assert torch.equal(x, own_x) and torch.equal(y, own_y)
        assert torch.equal(y, Points().y[request.indices_wb % 50])
    with pytest.raises(UserError, match="Stream ends after 30 examples, and its length is 50"):
        StreamSplit(Stream(ends_at=30)).batch(np.array([[35]]))


def test_processes_do_not_share_the_file_that_a_stream_reads(tmp_path):
    split = StreamSplit(Lines(tmp_path / "lines", 6_000))
    split.batch(np.array([[0, 1]]))  # as the trial of a model does, before workers are forked
    requests = [Request(np.arange(at, at + 500)[None]) for at in range(2, 5_500, 500)]
    for request, (_, y) in zip(requests, read_all(split, 0, TWO, requests), strict=True):
        assert y.tolist() == request.indices_wb.tolist()


def test_what_fails_in_a_process_is_one_sentence(capfd):
    request = Request(np.array([[1, 2, 3]]))
    requests = [request] * 5
    with pytest.raises(UserError, match=r"^example 2 is damaged$"):
        list(read_all(DatasetSplit(Broken(2, UserError)), 0, TWO, requests))
    with pytest.raises(Failure, match=r"made \(ValueError: example 2 is damaged\)$"):
        list(read_all(DatasetSplit(Broken(2)), 0, TWO, requests))
    assert "in __getitem__" in capfd.readouterr().err
    reading = Reading(DatasetSplit(Points()), 0, TWO)
    reading.expect([request] * 20)
    reading.batch(request)
    # torch's handler of SIGCHLD may raise at any place of the process that trains.
    with pytest.raises((Failure, RuntimeError), match=r"is gone|is killed by signal"):
        os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
        for _ in range(19):
            reading.batch(request)
    reading.close()


def test_no_process_outlives_the_one_that_trains():
    ours, theirs = Pipe()

    def train() -> int:
        reading = Reading(DatasetSplit(Points()), 0, TWO)
        reading.expect([Request(np.array([[1]]))] * 9)
        reading.batch(Request(np.array([[1]])))
        theirs.send([process.pid for process in multiprocessing.active_children()])
        time.sleep(60)
        return 0

    trainer = fork(train)
    assert ours.poll(120)
    pids = ours.recv()
    assert len(pids) == 2
    os.kill(trainer, signal.SIGKILL)
    os.waitpid(trainer, 0)
    deadline_s = time.monotonic() + 20
    while any(_is_running(pid) for pid in pids) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not any(_is_running(pid) for pid in pids)


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_waiting_is_told_and_added_up():
    spans = []
    reading = Reading(
        DatasetSplit(Points()), 0, Loaders(number=0), lambda start, end: spans.append((start, end))
    )
    for at in (1, 2):
        reading.batch(Request(np.array([[at]])))
    assert reading.waited_s == pytest.approx(sum(end - start for start, end in spans))
    assert len(spans) == 2 and reading.waited_s > 0
