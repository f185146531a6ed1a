"""Runs over networks that are more than a rate, and links that go down."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from experiments.runs.load import load_runs
from netsim.links.tcp import UNSENT_BYTES
from tests import app
from tests.busy_host import may_be_slowed

pytestmark = pytest.mark.root

NOBODY = 65534
FEW_STEPS = ("max_steps=4", "eval_every=4", "log_every=2")


@may_be_slowed
def test_what_the_network_turned_out_to_be_is_recorded(tmp_path):
    ended = app.run(
        *("algo=bytegrad", "net=wan", "net.rate_mbit=80", "net.tcp_wmem_max_kb=400"),
        "net.mtu=9000",
        *("workers=2", *FEW_STEPS),
        f"hydra.run.dir={tmp_path}",
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    record = app.summary(tmp_path)
    assert record["status"] == "completed"
    assert record["net_backend"] in ("netem", "switch")
    assert record["congestion_control"] == "cubic"
    assert abs(record["achieved_rate_mbit"] - 80) < 0.05 * 80
    assert abs(record["achieved_rtt_ms"] - 50) < 0.05 * 50 + 1
    assert [link["receiver"] for link in record["links"]] == [0, 1]
    assert record["tcp"]["max_segments"] == 1  # loss hits single frames
    assert record["tcp"]["unsent_bytes"] == UNSENT_BYTES
    assert (record["tcp"]["wmem_max_bytes"], record["tcp"]["mtu"]) == (400_000, 9000)
    hosts = Path("/proc/sys/net/ipv4/tcp_rmem").read_text().split()
    assert record["tcp"]["rmem_max_bytes"] == int(hosts[2])
    assert record["tcp"]["slow_start_after_idle"] is True  # Linux's own
    assert load_runs(tmp_path).loc[0, "net_backend"] == record["net_backend"]


def test_a_link_that_stays_down_ends_the_run_by_the_name_of_its_worker(tmp_path):
    ended = app.run(
        *("algo=allreduce", "net=slow_tcp", "max_steps=5000", "cluster.timeout_s=4"),
        *("net.faults=[{worker: 1, at_s: 2, for_s: 100}]", f"hydra.run.dir={tmp_path}"),
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    record = app.summary(tmp_path)
    assert record["status"] == "failed"
    assert record["reason"].startswith("worker 1 is silent; worker ")
    assert "Traceback" not in ended.stdout + ended.stderr


def test_a_link_that_comes_back_in_time_only_costs_time(tmp_path):
    ended = app.run(
        *("algo=allreduce", "net=slow_tcp", "net.rate_mbit=500", "max_steps=60", "workers=2"),
        *("net.faults=[{worker: 1, at_s: 0.5, for_s: 1.5}]", f"hydra.run.dir={tmp_path}"),
        "eval_every=60",
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    record = app.summary(tmp_path)
    assert record["status"] == "completed"
    assert record["steps"] / record["steps_per_s"] > 1.5


@may_be_slowed
def test_an_ordinary_user_trains_over_the_same_network(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    if os.geteuid() == 0:
        os.chown(home, NOBODY, NOBODY)
        for folder in home.parents:  # pytest keeps its own to the user
            if not folder.stat().st_mode & stat.S_IXOTH:
                os.chmod(folder, 0o755)
    arguments = ("algo=allreduce", "net=slow_tcp", "workers=2", *FEW_STEPS)
    ended = as_ordinary_user(home, *app.COMMAND, *arguments, f"hydra.run.dir={home}/run")
    if "forbids user namespaces" in ended.stderr:
        pytest.skip(ended.stderr)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    record = app.summary(home / "run")
    assert record["status"] == "completed"
    assert record["net_backend"] in ("netem", "switch")
    assert abs(record["achieved_rate_mbit"] - 100) < 5


def as_ordinary_user(home: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user who owns nothing but `home`; skip if they cannot read the code."""
    user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    options = {"cwd": app.ROOT, "capture_output": True, "text": True, "timeout": 200}
    environment = os.environ | {"HOME": str(home), "TMPDIR": str(home), "XDG_CACHE_HOME": str(home)}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, env=environment, **options, **user)

    try:
        readable = run(command[0], "-c", "import torch, experiments").returncode == 0
    except PermissionError:
        readable = False
    if not readable:
        pytest.skip("An ordinary user of this host cannot read the interpreter or the code.")
    return run(*command)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("net.loss_pct=101", "loss_pct"),
        ("net.backend=token_ring", "token_ring"),
        ("net.workers={9: {rate_mbit: 10}}", "9"),
        ("net.faults=[{worker: 9, at_s: 1, for_s: 1}]", "9"),
        ("net.schedule=[{at_s: 5, rat_mbit: 10}]", "rat_mbit"),
        ("net.trace=/nonexistent.csv", "/nonexistent.csv"),
    ],
)
def test_networks_that_cannot_be_are_refused_with_one_sentence(tmp_path, override, sentence):
    folder = tmp_path / "run"
    ended = app.run("algo=allreduce", "net=slow_tcp", override, f"hydra.run.dir={folder}")
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1
    assert sentence in ended.stderr
    assert not folder.exists()
