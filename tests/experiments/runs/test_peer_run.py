"""Workers that torchrun has started, and what each of them has read. Whole runs: test_torchrun."""

import json
import random

import numpy as np
import pytest

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.runs import peer_run
from experiments.runs.peer_run import told_examples, told_order
from experiments.tasks.base import Split, TaskData
from experiments.tasks.own.splits import DatasetSplit
from experiments.tasks.own.stream import StreamSplit
from host.errors import UserError
from tests.experiments.tasks.own.made import Signs, Stream

SMALL = ("workers=4", "batch_size=4")


class Word:
    """Peers of whom one hears what worker 0 has said."""

    def __init__(self, word):
        self.assignment, self.word = self, json.loads(json.dumps(word))
        self.rank = 3

    def hear(self):
        return self.word


def data_of(y, sources=None):
    split = Split(np.zeros((len(y), 1), np.float32), y, sources)
    return TaskData(split, split, split)


def follow(monkeypatch, tmp_path, own, first, *words):
    """What worker 3 does with its `own` examples where worker 0 has `first`."""
    plan = make_plan(compose_config(["algo=allreduce", *SMALL, *words]), tmp_path)
    monkeypatch.setattr(peer_run, "work_as_peer", lambda *arguments: [])
    told = {"examples": told_examples(first), "order": told_order(plan, first)}
    word = {"resume": None, "step": None, **told}
    return peer_run._follow(plan, own, Word(word))


def test_workers_have_the_same_examples(monkeypatch, tmp_path):
    order = np.random.default_rng(0).permutation(100)
    y = order % 10
    assert follow(monkeypatch, tmp_path, data_of(y), data_of(y)) == "completed"
    rounded = y + 1e-9  # another machine's
    assert follow(monkeypatch, tmp_path, data_of(rounded), data_of(y)) == "completed"
    for other in (y[::-1].copy(), y[:-1], (y + 1) % 10, np.stack([y, y], 1)):
        with pytest.raises(UserError, match=r"^worker 3 has other examples than worker 0: "):
            follow(monkeypatch, tmp_path, data_of(other), data_of(y))


def test_workers_share_examples_out_by_the_same_sources(monkeypatch, tmp_path):
    y, sources = np.arange(100) % 10, np.arange(100) // 5
    other = sources.copy()
    other[[1, 98]] = sources[[98, 1]]
    by_source = "data.partition=by_source"
    first = data_of(y, sources)
    assert follow(monkeypatch, tmp_path, data_of(y, sources), first, by_source) == "completed"
    with pytest.raises(UserError, match=r"^worker 3 takes .* in another order than worker 0: "):
        follow(monkeypatch, tmp_path, data_of(y, other), first, by_source)
    assert follow(monkeypatch, tmp_path, data_of(y, other), first) == "completed"


def test_of_a_stream_only_its_beginning_is_read():
    ends = StreamSplit(Stream(size=1_000, ends_at=16))
    assert told_examples(TaskData(ends, ends, ends))[0][0] == 1_000
    signs = Signs(3)
    assert told_examples(TaskData(*[DatasetSplit(signs)] * 3))[1] == [3, *signs.targets]


def test_a_dataset_draws_its_order_from_the_seed(tmp_path):
    name = f"{__name__}.Drawn"
    words = [*("algo=allreduce", "task=dataset"), "task.loss=mse_loss"]
    words += [f"task.train._target_={name}", f"task.validation._target_={name}"]
    words += ["model._target_=torch.nn.Linear", "model.in_features=4", "model.out_features=1"]
    orders = [
        [part.order for part in (plan.task.train, plan.task.validation)]
        for plan in (
            make_plan(compose_config([*words, f"seed={seed}"]), tmp_path) for seed in (0, 0, 1)
        )
    ]
    assert orders[0] == orders[1] != orders[2]


class Drawn(Signs):
    """Whose order is drawn when it is made, by NumPy and by Python."""

    def __init__(self) -> None:
        super().__init__()
        self.order = [*np.random.permutation(50).tolist(), random.random()]
