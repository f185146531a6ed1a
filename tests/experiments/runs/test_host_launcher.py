"""Sweeps on this host: trainings of simulated workers side by side, all others one by one."""

import os
import re
import signal
from pathlib import Path

import pytest
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import OmegaConf, open_dict

from experiments.plan.compose import compose_config
from experiments.runs import side_by_side
from experiments.runs.load import load_rows, load_runs
from experiments.runs.progress import progress_view
from experiments.runs.side_by_side import fitting, run_groups
from experiments.training.metrics import MetricsRow
from host.errors import Failure, UserError
from hydra_plugins.relaxlab import host_launcher
from hydra_plugins.relaxlab.host_launcher import HostLauncher, _Job
from tests import app

SMALL = (
    *("model=mlp", "workers=2", "batch_size=4", "max_steps=4", "eval_every=2", "net=wan,lan_1g"),
    "cluster.stacking=vmap",
)


def sweep(folder, *words, code=0):
    """What a sweep in `folder` printed: its output and its errors, without how long it takes."""
    ended = app.run("-m", *words, f"hydra.sweep.dir={folder}")
    assert ended.returncode == code, ended.stdout + ended.stderr
    said = [line.partition("; ")[0] for line in ended.stderr.splitlines()]
    return ended.stdout, [line for line in said if " % done" not in line]


def test_trainings_side_by_side_come_to_the_same_and_serve_their_networks(tmp_path):
    words = ("algo=bytegrad,local_sgd", "seed=3,4", "backend=sim", *SMALL)
    out, err = sweep(tmp_path / "both", *words, "hydra.sweeper.at_once=2")
    done = [f"{number} of 8 runs are done" for number in (2, 4, 6, 8)]
    assert err == ["8 runs, 2 at a time", *done]
    begin, *told, end = re.split(r"(?<=completed\n)|(?<=to do\n)", out)
    assert begin.endswith("8 runs, 8 to do\n") and end.endswith("8 runs, 8 done\n")
    # Of each run in one piece, and nothing of its evaluations.
    one = r"#\d : algo=.*\n\w+ on \w+: \S+\n(workers are .*\n)?completed\n"
    pieces = [re.fullmatch(one, text) for text in told]
    assert len(pieces) == 8 and all(pieces)
    out, err = sweep(tmp_path / "one by one", *words, "hydra.sweeper.at_once=1")
    assert err == [] and out.count("step 4/4") == 8
    assert facts(tmp_path / "both") == facts(tmp_path / "one by one")
    replayed = [one for one in facts(tmp_path / "both").values() if one[0] is not None]
    assert len(replayed) == 4


def facts(root: Path) -> dict[str, tuple[object, ...]]:
    """Of each run whose training it has, and its values."""
    runs = load_runs(root)
    assert runs.attrs["problems"] == []
    return {
        Path(run.folder).name: (
            app.summary(Path(run.folder))["replayed_from"],
            *(row.loss if row.kind == "step" else row.validation_loss for row in rows_of(run)),
        )
        for _, run in runs.iterrows()
    }


def rows_of(run):
    return load_rows(Path(run.folder))


def test_real_workers_come_one_after_the_other_and_after_them_by_default(tmp_path):
    words = ("algo=allreduce", "seed=0,1", "backend=gloo,sim", *SMALL[:-2], "net=none")
    out, _ = sweep(tmp_path, *words)
    assert "4 runs, 4 done" in out
    assert set(load_runs(tmp_path).backend) == {"gloo", "sim"}
    with pytest.raises(AssertionError, match=r"2 of the runs measure times.*sweeper.at_once=1, or"):
        sweep(tmp_path / "other", *words, "hydra.sweeper.at_once=2")


def test_a_run_that_is_refused_leaves_the_others(tmp_path):
    words = ("algo=bytegrad", "seed=0,1", "backend=sim", *SMALL, "batch_size=4,100000")
    out, err = sweep(tmp_path, *words, "hydra.sweeper.at_once=2", code=1)
    assert out.count("completed") == 4 and out.count("\nrefused: ") == 4
    assert err[-1].endswith("4 runs were refused and need other words")


class Context:
    """As Hydra's, with a loader that makes the configuration of a job of its words."""

    @property
    def config_loader(self):
        return self

    def load_sweep_config(self, config, words):
        given = OmegaConf.from_dotlist(words)
        hydra = {"job": {}, "runtime": {"output_dir": ""}}
        usual = {"workers": 1, "batch_size": 1, "max_steps": 1, "device": None, "hydra": hydra}
        backend = {"backend": {"process_group": None, "device": "cpu"}}
        return OmegaConf.merge(usual, backend, given)


def test_a_key_that_was_taken_away_is_left_to_the_run_to_refuse(monkeypatch, tmp_path):
    words = ("algo=bytegrad", "seed=3,4", "backend=sim", *SMALL, "~checkpoint_every")
    _, err = sweep(tmp_path, *words, "hydra.sweeper.at_once=2", code=2)
    assert err[-1] == "error: Key 'checkpoint_every' not in 'Schema', at checkpoint_every"
    config = compose_config(["algo=bytegrad", "backend=sim", *SMALL[:-2], "net=wan"])
    monkeypatch.setattr(side_by_side, "usable_cores", lambda: 2)
    with open_dict(config):
        del config["log_every"]
    assert fitting([dict(config)]) == min(2, len(os.sched_getaffinity(0)))


def launched(monkeypatch, tmp_path, run, *jobs, at_once=2):
    """What a launch of `jobs` returns whose runs are calls of `run`."""

    def run_job(*, config, **_):
        returned = JobReturn()
        returned.cfg, returned.status = config, JobStatus.COMPLETED
        try:
            returned.return_value = run(config)
        except Exception as error:
            returned.return_value, returned.status = error, JobStatus.FAILED
        return returned

    monkeypatch.setattr(host_launcher, "run_job", run_job)
    launcher = HostLauncher(at_once)
    hydra = {"hydra_logging": {"root": None}, "verbose": False, "sweep": {"dir": str(tmp_path)}}
    launcher.config = OmegaConf.create({"hydra": hydra})
    launcher.hydra_context, launcher.task_function = Context(), run
    monkeypatch.setattr(launcher, "_shared", lambda jobs: (at_once, [[job] for job in jobs]))
    return launcher.launch([[job] for job in jobs], 0)


def test_results_come_in_the_order_of_the_jobs_and_the_largest_begins(monkeypatch, tmp_path):
    def run(config):
        with (tmp_path / "begun").open("a") as file:
            file.write(f"{config.max_steps}")
        return config.max_steps

    returned = launched(monkeypatch, tmp_path, run, *(f"max_steps={n}" for n in (1, 4, 2, 3)))
    assert [one.return_value for one in returned] == [1, 4, 2, 3]
    assert (tmp_path / "begun").read_text()[0] in "43"


def test_an_error_that_nobody_knows_is_shown_whole_and_the_others_go_on(
    monkeypatch, tmp_path, capfd
):
    def run(config):
        if config.max_steps == 2:
            raise ZeroDivisionError("by nothing")
        if config.max_steps == 3:
            raise UserError("mend it")
        return config.max_steps

    first, second, third, last = launched(
        monkeypatch, tmp_path, run, *(f"max_steps={n}" for n in (1, 2, 3, 4))
    )
    assert (first.return_value, last.return_value) == (1, 4)
    with pytest.raises(Failure, match=r"^ZeroDivisionError: by nothing$"):
        _ = second.return_value
    with pytest.raises(UserError, match=r"^mend it$"):
        _ = third.return_value
    told = capfd.readouterr().err
    assert "Traceback" in told and told.count("ZeroDivisionError: by nothing") == 1


def test_a_process_that_was_killed_is_told_in_one_sentence(monkeypatch, tmp_path):
    def run(config):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(Failure, match="worked for this one was killed by SIGKILL"):
        launched(monkeypatch, tmp_path, run, "max_steps=1", "max_steps=2")


@pytest.mark.parametrize("steps", [None, "many", -1, 0])
def test_a_size_that_is_none_is_left_to_the_run_to_refuse(steps):
    config = OmegaConf.create({"workers": 2, "batch_size": 3, "max_steps": steps})
    assert _Job(place=0, overrides=[], config=config).size == 6


def test_what_is_left_is_said_while_trainings_are_at_work(monkeypatch, capfd):
    """Of a group the first run trains; those that follow take next to nothing."""
    monkeypatch.setattr("host.remaining.EVERY_S", 0.0)

    def run(name):
        with progress_view(name, 4, "accuracy") as view:
            if name != "replayed":
                view.show(MetricsRow(kind="step", step=2, time_s=1.0))
        return name

    come = []
    run_groups([["long", "replayed"], ["short"]], run, 1, come.append, [3.0, 1.0])
    assert come == [["long", "replayed"], ["short"]]
    said = capfd.readouterr().err.splitlines()
    assert said[0] == "3 runs, 1 at a time"
    shares = [int(re.search(r"(\d+) % done", line)[1]) for line in said[1:]]
    assert shares == [37, 75, 88, 100]
