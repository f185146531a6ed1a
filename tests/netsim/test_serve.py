import os
import subprocess
import sys

import pytest

from host.processes import end_of, fork
from netsim import serve
from netsim.__main__ import main, parse
from netsim.conditions.condition import NetworkCondition
from netsim.errors import NamespaceError
from netsim.serve import environment


def netsim(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "netsim", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_command_finds_its_place_in_the_environment():
    found = environment(1, ["10.0.0.1", "10.0.0.2"])
    assert found["RANK"] == "1"
    assert found["WORLD_SIZE"] == "2"
    assert found["MASTER_ADDR"] == "10.0.0.1"
    assert found["GLOO_SOCKET_IFNAME"] == "eth0"


def test_a_command_line_overrides_a_preset():
    condition, num_workers, name = parse(
        ["net=slow_tcp", "workers=3", "net.delay_ms=20", "net.workers={1: {rate_mbit: 5}}"]
    )
    assert (num_workers, name) == (3, "slow_tcp")
    assert condition.delay_ms == 20
    assert condition.link(1, "up").rate_mbit == 5


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "usage: python -m netsim"),
        (["probe"], "Name a network by net=: cellular, "),
        (["probe", "net=moon"], "There is no network 'moon': choose from cellular, "),
        (["probe", "net=wan", "net.speed=1"], "net has no key 'speed'"),
        (["probe", "net=wan", "net.delay_ms=-1"], "delay_ms has to be a finite number"),
        (["probe", "net=wan", "workers=none"], "workers has to be a number"),
        (["probe", "net=wan", "workers=0"], "workers has to be a number from 1 up, not '0'"),
        (["probe", "net=wan", "--fast"], "'--fast' is not understood"),
        (["probe", "net=wan", "net.delay_ms="], "'net.delay_ms=' has no value"),
        (["serve", "net=wan"], "serve takes a command after --"),
        (["collectives", "--help"], "The collectives are those of bagua_algos, "),
    ],
)
def test_a_wrong_command_line_is_answered_in_a_sentence(arguments, reason, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"netsim: {reason}")


@pytest.mark.root
def test_a_command_runs_once_per_worker_and_gives_its_exit_code(scenario):
    assert scenario("permitted") is None
    ended = netsim("serve", "net=none", "workers=2", "--", "sh", "-c", "echo rank $RANK; sleep 0.5")
    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.split()) == ["0", "1", "rank", "rank"]
    failed = netsim("serve", "net=none", "workers=2", "--", "sh", "-c", "exit $((RANK + 4))")
    assert failed.returncode in (4, 5)
    assert "ended with exit code" in failed.stderr


@pytest.mark.root
def test_a_command_may_kill_itself(scenario):
    """The first process of a PID namespace, and no other one, could not."""
    assert scenario("permitted") is None
    ended = netsim("serve", "net=none", "workers=1", "--", "sh", "-c", "kill -9 $$; echo alive")
    assert (ended.returncode, ended.stdout) == (137, "")
    assert "worker 0 ended with exit code 137" in ended.stderr


@pytest.mark.root
def test_a_host_without_pid_namespaces_is_told_what_to_do(scenario, monkeypatch, capfd):
    del scenario

    def refuse(main):
        raise NamespaceError("raise the sysctl")

    monkeypatch.setattr(serve, "run_in_pid_namespace", refuse)
    pid = fork(lambda: serve.serve(NetworkCondition(), 1, ["true"]))
    assert end_of(pid) == "ended with exit code 2"
    said = "netsim: raise the sysctl\nnetsim: worker 0 ended with exit code 2\n"
    assert capfd.readouterr().err == said


@pytest.mark.root
def test_what_a_command_has_started_ends_with_the_launcher(scenario, tmp_path):
    assert scenario("permitted") is None
    lock = tmp_path / "fifo"
    os.mkfifo(lock)
    # A grandchild in a session of its own holds the pipe open for as long as it lives.
    script = f"setsid sleep 77 > {lock} & wait"
    command = [sys.executable, "-m", "netsim", "serve", "net=none", "workers=1", "--"]
    with subprocess.Popen([*command, "sh", "-c", script]) as launcher, open(lock) as pipe:
        launcher.kill()
        assert pipe.read() == ""
