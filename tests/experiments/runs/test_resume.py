import os
import shutil
import signal
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.identity import completed, plain
from experiments.runs import folder_lock, resume
from experiments.runs.load import load_rows, load_runs
from experiments.runs.records import RunFolder
from experiments.runs.resume import FREE, check_resumable, check_same, going_on
from experiments.runs.run import known_summary
from experiments.runs.summary import Summary, read_summary, told_conditions
from experiments.tasks.target import Target
from experiments.training.checkpoints.checkpoint import Checkpoints, check_portable
from experiments.training.checkpoints.places import complete, complete_steps, newest
from experiments.training.metrics import MetricsRow
from host.errors import UserError
from tests import app

SMALL = ("net=none", "model=mlp", "workers=2", "max_steps=20", "eval_every=10", "log_every=1")


def checkpoint_of(folder, step):
    return [Checkpoints(folder, worker, 2).load(step) for worker in range(2)]


def values(measured):
    """Without what no two runs have in common: times, and bytes with their retransmissions."""
    return {k: v for k, v in measured.items() if not k.endswith("_s") and k != "bytes_sent"}


@pytest.mark.parametrize("algorithm", ["choco_sgd", "qsgd", "slowmo"])
def test_a_resumed_run_goes_on_bit_for_bit(algorithm, tmp_path):
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    ended = app.run(f"algo={algorithm}", *SMALL, "checkpoint_every=10", f"hydra.run.dir={whole}")
    assert ended.returncode == 0, ended.stderr
    at_20 = checkpoint_of(whole, 20)
    shutil.rmtree(whole / "checkpoints" / "step_00000020")
    ended = app.run(f"resume={whole}", f"hydra.run.dir={resumed}")
    assert ended.returncode == 0, ended.stderr
    for ours, theirs in zip(checkpoint_of(resumed, 20), at_20, strict=True):
        torch.testing.assert_close(flat(values(ours)), flat(values(theirs)), rtol=0, atol=0)
    for ours, theirs in zip(load_rows(resumed), load_rows(whole), strict=True):
        assert values(asdict(ours)) == values(asdict(theirs))
    assert app.summary(resumed)["resumed_from"] == str(whole)


def flat(value, prefix=""):
    """Every number and tensor of a nested state by its path."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    elif hasattr(value, "__dict__") and not isinstance(value, torch.Tensor):
        items = vars(value).items()
    else:
        return {prefix: value} if isinstance(value, torch.Tensor | int | float) else {}
    return {k: v for key, item in items for k, v in flat(item, f"{prefix}/{key}").items()}


def test_a_killed_run_is_resumed(tmp_path):
    killed, resumed = tmp_path / "killed", tmp_path / "resumed"
    run = app.start(killed, "model=mlp", "checkpoint_every=5", "log_every=1", "net=none")
    app.wait_for(lambda: len(list(killed.glob("checkpoints/*/3_of_4.pt"))) > 1, 60, "checkpoint")
    below = app.roles(run.pid).values()
    os.kill(run.pid, signal.SIGKILL)
    run.end(20)
    app.wait_for(lambda: not any(map(app.is_running, below)), 20, "end of its workers")
    step = Checkpoints(killed, 0, 4).latest()
    ended = app.run(f"resume={killed}", f"max_steps={step + 3}", f"hydra.run.dir={resumed}")
    assert ended.returncode == 0, ended.stderr
    steps = [row.step for row in load_rows(resumed) if row.kind == "step"]
    assert steps == list(range(1, step + 4))


@pytest.mark.root
def test_the_network_of_a_resumed_run_is_at_the_time_of_the_checkpoint(tmp_path):
    """A delay begins after 1,000 s, which a checkpoint says that training has taken."""
    first, resumed = tmp_path / "first", tmp_path / "resumed"
    net = ("net=none", "net.schedule=[{at_s: 1000, delay_ms: 200}]")
    words = ("algo=allreduce", *SMALL, *net, "max_steps=6", "eval_every=6", "checkpoint_every=2")
    ended = app.run(*words, f"hydra.run.dir={first}")
    assert ended.returncode == 0, ended.stderr
    for worker in range(2):
        own = Checkpoints(first, worker, 2)
        own.save(6, own.load(4) | {"time_s": 1000.5})
    for file in (first / "checkpoints" / "step_00000006").iterdir():
        file.replace(first / "checkpoints" / "step_00000004" / file.name)
    (first / "checkpoints" / "step_00000006").rmdir()
    ended = app.run(f"resume={first}", f"hydra.run.dir={resumed}")
    assert ended.returncode == 0, ended.stderr
    at_s = {row.step: row.time_s for row in load_rows(resumed) if row.kind == "step"}
    assert at_s[4] < 200
    assert at_s[5] - 1000.5 > 0.2
    assert at_s[6] - at_s[5] > 0.2


def test_a_checkpoint_is_complete_with_the_last_file(tmp_path):
    first, second = (Checkpoints(tmp_path, process, 2) for process in range(2))
    first.save(10, {"x": 1})
    with pytest.raises(UserError, match="no complete checkpoint of 2 processes"):
        first.latest()
    second.save(10, {"x": 2})
    first.save(20, {"x": 3})
    assert first.latest() == second.latest() == 10
    second.save(20, {"x": 4})
    assert second.latest() == 20
    assert [c.load(20)["x"] for c in (first, second)] == [3, 4]


def test_a_checkpoint_whose_rows_were_lost_on_their_way_is_not_gone_on_from(tmp_path):
    steps = {"log_every": 2, "eval_every": 5, "max_steps": 20}
    config = completed(steps | {"names": {"backend": "sim"}})
    record = RunFolder.create(tmp_path, config, Summary(algo="allreduce", net="none"))
    own = Checkpoints(tmp_path, 0, 1)
    for step in (4, 8):
        own.save(step, {})
    record.log(MetricsRow(kind="step", step=4, time_s=4.0, loss=1.0))
    assert check_resumable(config, tmp_path, 1) == 4
    record.log(MetricsRow(kind="step", step=8, time_s=8.0, loss=1.0))
    assert check_resumable(config, tmp_path, 1) == 4  # no evaluation of step 5
    record.log(MetricsRow(kind="evaluation", step=5, time_s=5.0, accuracy=1.0))
    assert check_resumable(config, tmp_path, 1) == 8
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(
        UserError, match="before it had logged what led to its checkpoint of step 8"
    ):
        check_resumable(config, tmp_path, 1)


@pytest.mark.parametrize("log_every", [3, 4, 7])
def test_a_checkpoint_after_a_change_of_log_every_is_gone_on_from(log_every, tmp_path):
    """The first run logged steps 1 and 10 and went on to 10, where it was evaluated."""
    steps = {"log_every": log_every, "eval_every": 5, "max_steps": 20}
    config = completed(steps | {"names": {"backend": "sim"}})
    record = RunFolder.create(tmp_path, config, Summary(algo="allreduce", net="none"))
    Checkpoints(tmp_path, 0, 1).save(11, {})
    for step in (1, 5, 10):
        if step != 5:
            record.log(MetricsRow(kind="step", step=step, time_s=step, loss=1.0))
        if step != 1:
            record.log(MetricsRow(kind="evaluation", step=step, time_s=step, accuracy=1.0))
    assert check_resumable(config, tmp_path, 1) == 11


def test_a_later_evaluation_says_that_the_losses_before_it_were_logged(tmp_path):
    """The first run logged every tenth step, up to 25; then every seventh step is logged."""
    steps = {"log_every": 7, "eval_every": 5, "max_steps": 40}
    config = completed(steps | {"names": {"backend": "sim"}})
    record = RunFolder.create(tmp_path, config, Summary(algo="allreduce", net="none"))
    own = Checkpoints(tmp_path, 0, 1)
    for step in (27, 29):
        own.save(step, {})
    record.log(MetricsRow(kind="step", step=20, time_s=20.0, loss=1.0))
    record.log(MetricsRow(kind="evaluation", step=25, time_s=25.0, accuracy=1.0))
    assert check_resumable(config, tmp_path, 1) == 27  # no loss of step 28
    record.log(MetricsRow(kind="step", step=28, time_s=28.0, loss=1.0))
    assert check_resumable(config, tmp_path, 1) == 29


def saved_with(folder, *words):
    """The configuration of a run in `folder`."""
    config = plain(compose_config(["algo=allreduce", "net=two_sites", "workers=4", *words]))
    RunFolder.create(folder, config, Summary(algo="allreduce", net="two_sites"))
    return config


def test_workers_that_average_within_nodes_go_on_within_the_same(tmp_path):
    hierarchical = "algo.hierarchical=true"
    config = saved_with(tmp_path, hierarchical)

    def other(size, **values):
        return config | {"net": config["net"] | {"nodes": {"size": size}}} | values

    check_same(other(2), tmp_path)
    with pytest.raises(
        UserError, match=r"within nodes of 2 workers, not 4: give net.nodes.size=2$"
    ):
        check_same(other(4), tmp_path)
    check_same(other(1, workers=2), tmp_path, (*FREE, "workers"))  # as torchrun has started them


def test_nodes_may_change_where_nobody_averages_within_them(tmp_path):
    config = saved_with(tmp_path)
    check_same(config | {"net": config["net"] | {"nodes": {"size": 4}}}, tmp_path)
    check_same(config | {"net": config["net"] | {"nodes": None}}, tmp_path)


def test_nodes_that_hold_all_workers_are_the_same(tmp_path):
    config = saved_with(tmp_path, "algo.hierarchical=true", "net.nodes.size=4")
    check_same(config | {"net": config["net"] | {"nodes": {"size": 8}}}, tmp_path)


def test_a_run_that_goes_on_in_its_own_folder_keeps_what_it_had_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["algo=allreduce", "workers=2", "task=mnist5k", "model=mlp", "backend=sim"]
    config = compose_config(words)
    plan = replace(make_plan(config, tmp_path / "run"), resume=Path("first"))
    summary = known_summary(plan, plan.load_data())
    assert summary.resumed_from == str(tmp_path / "first")
    record = RunFolder.create(plan.folder, plain(config), summary)
    again = replace(plan, resume=plan.folder, resume_step=8)
    _, _, gone_on = going_on(again, plain(config), known_summary(again, again.load_data()))
    assert gone_on.resumed_from == summary.resumed_from
    record = RunFolder.reopen(plan.folder, {}, gone_on, [], [])
    record.finish(replace(gone_on, status="completed"))
    assert read_summary(plan.folder).resumed_from == summary.resumed_from


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (Target(value=0.6), Target(metric="loss", value=0.3)),
        (Target(metric="perplexity", value=20.0), Target(value=0.6)),
    ],
)
def test_a_run_goes_on_with_the_metric_that_its_rows_were_scored_by(first, then, tmp_path):
    words = ["algo=allreduce", "workers=2", "task=mnist5k", "model=mlp", "backend=sim"]
    config = plain(compose_config(words))
    plan = replace(make_plan(compose_config(words), tmp_path / "run"), target=first)
    data = plan.load_data()
    RunFolder.create(plan.folder, config, known_summary(plan, data))
    again = replace(plan, resume=plan.folder, resume_step=8)
    for target in (first, replace(first, value=1.5 * first.value)):
        own = replace(again, target=target)
        going_on(own, config, known_summary(own, data))
    other = replace(again, target=then)
    with pytest.raises(UserError, match=f"was scored by {first.metric}, not {then.metric}: keep"):
        going_on(other, config, known_summary(other, data))


WORDS = ("algo=allreduce", "workers=2", "task=mnist5k", "model=mlp", "backend=sim")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("net=wan",), "lan_1g, then wan after step 8"),
        (
            ("net=lan_1g", "net.delay_ms=7"),
            "net.delay_ms=0, then net.delay_ms=7 after step 8",
        ),
        (
            ("net=lan_1g", "cluster.straggler=2"),
            "cluster.straggler=0.0, then cluster.straggler=2 after step 8",
        ),
        (("net=lan_1g", "cluster.timeout_s=60", "cluster.stacking=loop", "net.backend=tbf"), None),
    ],
)
def test_what_goes_on_over_another_network_says_so(words, told, tmp_path):
    folders = [tmp_path / name for name in ("first", "moved", "further")]
    first = compose_config([*WORDS, "net=lan_1g"])
    plan = make_plan(first, folders[0])
    data = plan.load_data()
    record = RunFolder.create(plan.folder, plain(first), known_summary(plan, data))
    record.finish(replace(known_summary(plan, data), status="completed"))
    for step, (earlier, folder) in zip((8, 16), pairwise(folders), strict=True):
        config = compose_config([*WORDS, *words])
        plan = replace(make_plan(config, folder), resume=earlier, resume_step=step)
        _, _, summary = going_on(plan, plain(config), known_summary(plan, data))
        assert told_conditions(summary.conditions_over_time) == told
        record = RunFolder.create(folder, plain(config), summary)
        record.finish(replace(summary, status="completed", time_to_accuracy_s=3.0))
    runs = load_runs(tmp_path)
    assert len(runs) == (3 if told is None else 1)
    assert [f"changed ({told})" in text for text in runs.attrs["apart"]] == [True] * (3 - len(runs))


def test_the_last_evaluation_of_a_shorter_run_is_none_of_a_longer_one(tmp_path):
    first, steps = tmp_path / "first", ("eval_every=10", "log_every=4")
    short = compose_config([*WORDS, *steps, "max_steps=16"])
    plan = make_plan(short, first)
    data = plan.load_data()
    record = RunFolder.create(first, plain(short), known_summary(plan, data))
    for step in (10, 16):
        record.log(MetricsRow(kind="step", step=step, time_s=step, loss=1.0))
        record.log(MetricsRow(kind="evaluation", step=step, time_s=step, accuracy=1.0))
    for num_steps, kept in ((16, [10, 16]), (20, [10])):
        config = compose_config([*WORDS, *steps, f"max_steps={num_steps}"])
        plan = make_plan(config, tmp_path / "then")
        plan = replace(plan, resume=first, resume_step=16)
        _, rows, _ = going_on(plan, plain(config), known_summary(plan, data))
        assert [row.step for row in rows if not row.is_evaluation] == [10, 16]
        assert [row.step for row in rows if row.is_evaluation] == kept


def test_a_run_of_another_number_of_workers_is_said_to_be_one(tmp_path):
    saved_with(tmp_path, "workers=2")
    Checkpoints(tmp_path, 0, 2).save(4, {})
    config = plain(compose_config(["algo=allreduce", "net=two_sites", "workers=3"]))
    with pytest.raises(UserError, match="was run with workers=2, not 3: only net, cluster"):
        check_resumable(config, tmp_path, 3)


def test_a_run_that_is_at_work_is_not_gone_on_with(tmp_path, monkeypatch):
    """Its checkpoints are deleted meanwhile."""
    monkeypatch.setattr(folder_lock, "PATIENCE_S", 0.0)
    config = saved_with(tmp_path / "run")
    Checkpoints(tmp_path / "run", 0, 1).save(4, {})
    with (
        folder_lock.hold(tmp_path / "run"),
        pytest.raises(UserError, match=r"^resume=.*run is being run by another process: let it"),
    ):
        check_resumable(config, tmp_path / "run", 1)
    with pytest.raises(UserError, match="killed before it had logged what led to its checkpoint"):
        check_resumable(config, tmp_path / "run", 1)


def test_checkpoints_of_another_number_of_workers_are_named(tmp_path):
    for process in range(3):
        Checkpoints(tmp_path, process, 3).save(4, {})
    with pytest.raises(UserError, match="holds checkpoints of 3 processes, and none of 2: start"):
        complete_steps(tmp_path, 2)


def test_old_checkpoints_go(tmp_path):
    own = Checkpoints(tmp_path, 0, 1)
    for step in (10, 20, 30, 40):
        own.save(step, {})
    assert [p.name for p in sorted(tmp_path.glob("checkpoints/*"))] == [
        "step_00000030",
        "step_00000040",
    ]


def test_copies_that_a_user_keeps_beside_checkpoints_stay(tmp_path):
    own = Checkpoints(tmp_path, 0, 1)
    own.save(10, {"x": 1})
    names = ["step_00000010.keep", "step_10", "step_best", "step_00000010 (copy)"]
    for name in names:
        shutil.copytree(tmp_path / "checkpoints" / "step_00000010", tmp_path / "checkpoints" / name)
    for step in (20, 30, 40):
        own.save(step, {"x": step})
    assert complete_steps(tmp_path, 1) == [40, 30] and newest(tmp_path) == 40
    assert {*names} < {folder.name for folder in tmp_path.glob("checkpoints/*")}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("resume=nowhere",), "resume=nowhere: that is no folder of a run"),
        (("algo=torch_ddp_powersgd", "checkpoint_every=5"), "cannot be resumed"),
        (("algo=allreduce", "checkpoint_every=-1"), "checkpoint_every must be at least 0, got -1"),
        (("algo=allreduce", "accumulate=5"), "accumulate=5 micro-batches must divide"),
        (("algo=allreduce", "precision=int8"), "precision must be one of float32, bfloat16"),
        (("algo=allreduce", "clip_norm=0"), "clip_norm must be more than 0 or null, got 0"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(words, complaint, tmp_path):
    ended = app.run(*words, f"hydra.run.dir={tmp_path / 'run'}")
    assert ended.returncode == 2
    assert complaint in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("backend", ["gloo", "sim"])
def test_a_checkpoint_of_another_model_is_refused_in_a_sentence(backend, tmp_path):
    """As one is that an older version wrote, or the same code of the user before a change."""
    run = tmp_path / "run"
    words = ("algo=allreduce", *SMALL, f"backend={backend}", "max_steps=4", "eval_every=4")
    ended = app.run(*words, "checkpoint_every=2", f"hydra.run.dir={run}")
    assert ended.returncode == 0, ended.stderr
    shutil.rmtree(run / "checkpoints" / "step_00000004")
    for file in (run / "checkpoints" / "step_00000002").glob("*.pt"):
        state = torch.load(file, weights_only=True)
        state["model"] = {f"another.{name}": x for name, x in state["model"].items()}
        torch.save(state, file)
    ended = app.run(f"resume={run}", f"hydra.run.dir={tmp_path / 'resumed'}")
    assert ended.returncode == 2
    (line,) = (line for line in ended.stderr.splitlines() if "resume=" in line)
    assert "the model of its checkpoint is not this one (Missing key(s) in state_dict: " in line
    assert line.endswith("Go on with the code that wrote it, or begin anew")


@pytest.mark.parametrize(
    ("algo", "state", "what"),
    [
        ("allreduce", None, None),
        ("torch_ddp", {}, None),
        ("slowmo", [torch.zeros(1)], "models of slowmo"),
        ("local_sgd", None, "models of local_sgd"),
        ("decentralized", None, "models of decentralized"),
        ("qadam", [torch.zeros(1)], "state of qadam"),
    ],
)
def test_another_number_of_workers_goes_on_where_all_models_are_one(algo, state, what, tmp_path):
    plan = make_plan(compose_config([f"algo={algo}", "workers=2", "model=mlp"]), tmp_path)
    saved = {"distributed": {"state": state, "step": 5}, "batches": {}}
    if what is None:
        check_portable(saved, plan, 4)
        with pytest.raises(UserError, match=r"of an earlier version, and does not say .* start 4$"):
            check_portable({"distributed": saved["distributed"]}, plan, 4)
        return
    sentence = f"has the {what} on 4 workers, which 2 cannot go on with: start 4$"
    with pytest.raises(UserError, match=sentence):
        check_portable(saved, plan, 4)


@pytest.mark.parametrize("text", ["", "algo: [", "seed: 1\n"])
def test_a_run_whose_configuration_is_torn_is_not_gone_on_with(text, tmp_path):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=r"config\.yaml is no whole configuration of a run"):
        check_same({"seed": 1}, tmp_path)


@pytest.mark.parametrize("number", [0, -1, "often", None])
def test_a_configuration_that_no_run_has_written_is_not_gone_on_from(number, tmp_path, monkeypatch):
    monkeypatch.setattr(resume, "check_same", lambda config, run: {"log_every": number})
    said = rf"^resume={tmp_path} has log_every={number} in its config\.yaml, which no run has: put"
    with pytest.raises(UserError, match=said):
        check_resumable({"max_steps": 10}, tmp_path, 1)


def test_a_checkpoint_that_is_removed_meanwhile_is_not_complete(tmp_path):
    assert complete(tmp_path, 40) == set()
