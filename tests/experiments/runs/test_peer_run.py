"""Workers that torchrun has started, and what each of them has read. Whole runs: test_torchrun."""

import errno
import json
import random
from contextlib import ExitStack

import numpy as np
import pytest
import torch.distributed as dist

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.identity import plain
from experiments.real.assignment import find_assignment
from experiments.real.peers import Peers
from experiments.runs import folder_lock, peer_run
from experiments.runs.folder_lock import hold, is_held
from experiments.runs.peer_run import told_examples, told_order
from experiments.runs.summary import NOT_ENDED
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


class Leads:
    """Worker 0, which torchrun has started again."""

    starter, num_hosts, num_restarts = "torchrun", 1, 1

    def __init__(self):
        self.assignment = self

    def say(self, word):
        self.word = word


def test_a_run_whose_worker_died_while_its_record_was_begun_begins_anew(monkeypatch, tmp_path):
    config = compose_config(["algo=allreduce", "model=mlp"])
    plan = make_plan(config, tmp_path / "run")
    plan.folder.mkdir()
    summary = {"algo": "allreduce", "status": "failed", "reason": NOT_ENDED}
    (plan.folder / "summary.json").write_text(json.dumps(summary))
    found = []

    class Recorder:
        def __init__(self, plan, *arguments, goes_on):
            found.append((goes_on, plan.resume, plan.folder.exists()))

        def run(self, data):
            return "completed"

    monkeypatch.setattr(peer_run, "Recorder", Recorder)
    data = data_of(np.arange(200) % 10)
    assert peer_run._lead(plan, plain(config), [], data, Leads()) == "completed"
    assert found == [(False, None, True)]
    assert not any(plan.folder.iterdir())


def test_a_folder_of_other_files_is_left_alone(monkeypatch, tmp_path):
    config = compose_config(["algo=allreduce", "model=mlp"])
    plan = make_plan(config, tmp_path)
    own = tmp_path / "metrics.jsonl"
    own.write_text("of another tool")
    with pytest.raises(UserError, match=r"has files, but no config.yaml of a run: choose another"):
        peer_run._lead(plan, plain(config), [], data_of(np.arange(200) % 10), Leads())
    assert own.read_text() == "of another tool"


def lead_alone(monkeypatch, folder, num_restarts):
    """Worker 0 of one worker; its word, and whether its folder was held while it trained."""
    place = {name: "0" for name in ("RANK", "LOCAL_RANK", "GROUP_RANK")}
    place |= {name: "1" for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")}
    place |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    place |= {"TORCHELASTIC_RESTART_COUNT": str(num_restarts)}
    own = find_assignment(place)
    assert own is not None
    peers = Peers(assignment=own, store=dist.HashStore(), started="now")
    held = []

    class Recorder:
        def __init__(self, *arguments, goes_on):
            pass

        def run(self, data):
            monkeypatch.setattr(folder_lock, "PATIENCE_S", 0.0)
            held.append(is_held(folder))
            return "completed"

    monkeypatch.setattr(peer_run, "Recorder", Recorder)
    monkeypatch.setattr(peer_run, "load_data", lambda plan: data_of(np.arange(200) % 10))
    config = compose_config(["algo=allreduce", "model=mlp", "net=none", "workers=1"])
    status = peer_run.run_as_peer(config, folder, [], peers)
    return status, held


def test_a_run_holds_its_folder_until_it_ends(monkeypatch, tmp_path):
    folder = tmp_path / "run"
    assert lead_alone(monkeypatch, folder, 0) == ("completed", [True])
    assert not is_held(folder)


def test_a_second_command_does_not_join_a_run_that_goes_on(monkeypatch, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    summary = {"algo": "allreduce", "status": "failed", "reason": NOT_ENDED}
    (folder / "summary.json").write_text(json.dumps(summary))
    monkeypatch.setattr(peer_run, "PATIENCE_S", 0.1)
    said = []
    monkeypatch.setattr(Peers, "say", lambda peers, word: said.append(word))
    sentence = r"^.*run is being run by another process: let it end, or stop it, or choose another "
    with hold(folder), pytest.raises(UserError, match=sentence) as refusal:
        lead_alone(monkeypatch, folder, 0)
    assert not isinstance(refusal.value, folder_lock.HeldError)  # which a sweep leaves, as done
    assert said == [{"refused": str(refusal.value)}]
    assert [file.name for file in folder.iterdir()] == ["summary.json"]


def test_a_run_goes_on_where_no_lock_can_lie_beside_its_folder(monkeypatch, tmp_path):
    def refuse(path, *_):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(folder_lock, "hold", refuse)
    assert lead_alone(monkeypatch, tmp_path / "run", 0) == ("completed", [False])


def test_a_restart_waits_for_the_lock_of_a_lost_machine(monkeypatch, tmp_path):
    folder, seconds = tmp_path / "run", [0.0]
    held = ExitStack()
    held.enter_context(hold(folder))

    def sleep(for_s):
        seconds[0] += for_s
        if seconds[0] > 30:  # that of the file server's lease
            held.close()

    monkeypatch.setattr(folder_lock.time, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(folder_lock.time, "sleep", sleep)
    assert lead_alone(monkeypatch, folder, 1)[0] == "completed"
    assert seconds[0] > 30


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
