import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from bagua_algos.communication import rendezvous
from bagua_algos.communication.communicator import CommunicationError
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.real import peers as peers_module
from experiments.real.assignment import find_assignment
from experiments.real.failures import RunFailedError
from experiments.real.peers import Peers
from experiments.real.torchrun import _surroundings, check_assigned
from experiments.runs.load import load_rows, load_runs
from experiments.runs.peer_run import shared_arguments
from experiments.training.checkpoints.places import newest
from host.conf import PACKAGED
from host.errors import UserError
from netsim.links import counters
from tests import app
from tests.experiments import elastic as elastic_program
from tests.experiments import torchrun
from tests.netsim.links.test_namespaces import is_alive
from tests.ports import held_port

TORCHRUN = {
    **{"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"},
    **{"GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "node1", "MASTER_PORT": "29400"},
    **{"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "2"},
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}
SRUN = {
    **{"SLURM_JOB_ID": "71", "SLURM_STEP_ID": "0", "SLURM_PROCID": "4", "SLURM_LOCALID": "0"},
    **{"SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_NUM_NODES": "3", "SLURM_NODEID": "2"},
    **{"SLURM_STEP_NODELIST": "rack[07-09]", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1"},
}


def test_the_place_that_torchrun_gives():
    assignment = find_assignment(TORCHRUN)
    assert (
        assignment.rank,
        assignment.world_size,
        assignment.local_rank,
        assignment.local_world_size,
    ) == (5, 8, 1, 4)
    assert (assignment.host_index, assignment.num_hosts, assignment.num_restarts) == (1, 2, 2)
    assert (assignment.address, assignment.port, assignment.has_store) == ("node1", 29400, True)
    assert assignment.run_id is None
    assert find_assignment(TORCHRUN | {"TORCHELASTIC_RUN_ID": "mine"}).run_id == "mine"


def test_the_place_that_srun_gives():
    assignment = find_assignment(SRUN)
    assert (
        assignment.rank,
        assignment.world_size,
        assignment.local_rank,
        assignment.local_world_size,
    ) == (4, 5, 0, 1)
    assert (assignment.host_index, assignment.num_hosts, assignment.has_store) == (2, 3, False)
    assert (assignment.address, assignment.run_id) == ("rack07", "slurm_71.0")
    assert find_assignment(SRUN | {"SLURM_NODEID": "1"}).local_world_size == 2
    assert find_assignment(SRUN | {"SLURM_STEP_ID": "1"}).port != assignment.port
    assert find_assignment(SRUN | {"MASTER_ADDR": "a", "MASTER_PORT": "1234"}).port == 1234


@pytest.mark.parametrize(
    ("hosts", "first"),
    [
        ("login", "login"),
        ("a,b", "a"),
        ("rack[07-09,12]-gpu,login", "rack07-gpu"),
        ("r[1,3]n[05-08]", "r1n05"),
    ],
)
def test_the_first_of_slurms_hosts(hosts, first):
    assert find_assignment(SRUN | {"SLURM_STEP_NODELIST": hosts}).address == first


def test_a_process_alone_has_no_place():
    assert find_assignment({}) is None
    assert find_assignment(SRUN | {"SLURM_STEP_NUM_TASKS": "1"}) is None  # as submitit starts a run
    with pytest.raises(UserError, match="which \\('LOCAL_RANK'\\): start it by torchrun or srun"):
        find_assignment(
            {key: TORCHRUN[key] for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
        )


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["backend=sim"], "backend=sim simulates all workers in one process"),
        (["net=slow_tcp"], "net=slow_tcp shapes links, .* add net=none"),
        (["net=none", "net.faults=[{worker: 1, at_s: 5, for_s: 2}]"], "shapes links"),
        (["net=none", "net.nodes={size: 2}"], "net.nodes.size=2, but torchrun has started 4"),
        (["net=none", "net.mtu=9000"], "net.mtu is set by nothing .*: leave it out"),
        (["net=none", "net.queue_ms=50"], "net.queue_ms is set by nothing .*: leave it out"),
        (["net=none", "net.tcp_wmem_max_kb=64"], "net.tcp_wmem_max_kb is set by nothing"),
        (["net=none", "net.tcp_slow_start_after_idle=false"], "after_idle is set by nothing"),
        (["net=none", "net.congestion_control=bbr"], "net.congestion_control is set by nothing"),
        (["net=none", "trace=true"], "trace=true has no clock for all machines"),
    ],
)
def test_what_only_this_host_can_do_is_refused(overrides, sentence, tmp_path):
    plan = make_plan(compose_config(["algo=allreduce", *overrides]), tmp_path)
    with pytest.raises(UserError, match=sentence):
        check_assigned(plan, find_assignment(TORCHRUN))


def placed(hosts):
    """The assignments of ranks that srun has put on these hosts, in the order of `hosts`."""
    counts = [hosts.count(host) for host in range(max(hosts) + 1)]
    shared = {"SLURM_STEP_NUM_TASKS": str(len(hosts)), "SLURM_STEP_NUM_NODES": str(len(counts))}
    shared |= {"SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, counts))}
    for rank, host in enumerate(hosts):
        own = {"SLURM_PROCID": str(rank), "SLURM_NODEID": str(host)}
        own |= {"SLURM_LOCALID": str(hosts[:rank].count(host))}
        assignment = find_assignment(SRUN | shared | own)
        assert assignment is not None
        yield assignment


@pytest.mark.parametrize(
    ("hosts", "size", "refused"),
    [
        ([0, 0, 1, 1], 2, []),
        ([1, 1, 0, 0], 2, []),  # by a host file
        ([0, 0, 0, 0], 4, []),
        ([0, 1, 2], 1, []),
        ([0, 1, 0, 1], 2, [1, 2]),  # --distribution=cyclic
        ([0, 0, 1, 1, 0, 0, 1, 1], 4, [2, 3, 4, 5]),  # --distribution=plane=2
        ([0, 1, 1, 0], 2, [1, 2]),
    ],
)
def test_a_node_that_lies_on_several_machines_is_refused(hosts, size, refused, tmp_path):
    words = ["algo=allreduce", "net=none", f"net.nodes={{size: {size}}}", f"workers={len(hosts)}"]
    plan = make_plan(compose_config(words), tmp_path)
    found = []
    for assignment in placed(hosts):
        try:
            check_assigned(plan, assignment)
        except UserError as error:
            found.append(assignment.rank)
            assert "has put them on several: start with --distribution=block" in str(error)
    assert found == refused


SECOND_HOST = SRUN | {"SLURM_PROCID": "1", "SLURM_NODEID": "1", "SLURM_STEP_NUM_TASKS": "3"}


def peers_of(variables, store=None) -> Peers:
    own = find_assignment(variables | {"SLURM_STEP_TASKS_PER_NODE": "1(x3)"})
    assert own is not None
    return Peers(assignment=own, store=store or dist.HashStore(), started="now")


@pytest.mark.parametrize(
    ("chosen", "leads", "counted"),
    [
        ("", "eth0", "eth0"),
        ("ib0", "eth0", "ib0"),
        ("ib0", None, "ib0"),
        ("ib0,ib1", "eth0", None),
        ("ib0", "lo", None),
    ],
)
def test_bytes_are_of_the_interface_that_gloo_uses(chosen, leads, counted, tmp_path, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", chosen)
    monkeypatch.setattr(Peers, "interface", lambda peers: leads)
    monkeypatch.setattr(counters, "bytes_sent", lambda interface: interface)
    plan = make_plan(compose_config(["algo=allreduce", "net=none"]), tmp_path)
    bytes_sent = _surroundings(plan, peers_of(SECOND_HOST)).bytes_sent
    assert (bytes_sent and bytes_sent()) == counted


def has_ipv6() -> bool:
    with suppress(OSError), socket.socket(socket.AF_INET6) as own:
        own.bind(("::1", 0))
        return True
    return False


OF_IPV6 = pytest.mark.skipif(not has_ipv6(), reason="a host without IPv6")


@pytest.mark.parametrize(
    ("first", "own"),
    [pytest.param("::1", "::1", marks=OF_IPV6), ("127.0.0.1", "127.0.0.1")],
)
def test_hosts_that_are_found_by_ipv6_are_asked_like_others(first, own):
    store = dist.HashStore()
    variables = SECOND_HOST | {"MASTER_ADDR": first, "MASTER_PORT": "29400"}
    assert peers_of(variables, store).interface() == "lo"
    first_host = variables | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    assert store.get("an address outside").decode() == own
    assert peers_of(first_host, store).interface() == "lo"


def test_no_interface_is_known_for_an_address_of_ipv6():
    store = dist.HashStore()
    store.set("an address outside", "2001:db8::1")
    first_host = SECOND_HOST | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    assert peers_of(first_host, store).interface() is None


def test_a_host_that_never_says_its_address_is_named():
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=0.1))
    first_host = SECOND_HOST | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}
    with pytest.raises(RunFailedError, match="worker 0: no worker on another machine has said"):
        peers_of(first_host, store).interface()


def test_what_torchrun_starts_is_one_run(tmp_path):
    folder = tmp_path / "run"
    torchrun.run(folder, "+algo=bytegrad", *torchrun.SMALL, "max_steps=20")
    record = app.summary(folder)
    assert record["status"] == "completed"
    assert record["workers"] == 2
    assert record["net"] == "own network, 1 host"
    assert record["bytes_sent_per_worker"] is None  # nothing counts what workers of a host send
    assert {row.bytes_sent for row in load_rows(folder)} == {None}
    assert [row.step for row in load_rows(folder) if row.kind == "step"] == [*range(1, 21)]
    assert len(load_runs(tmp_path)) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("+algo=allreduce", "net=none", "workers=4"), "torchrun has started 8: leave workers out"),
        (("-m", "+algo=allreduce", "net=none"), "leave out -m"),
    ],
)
def test_a_command_line_that_torchrun_cannot_start_is_refused(arguments, sentence):
    own = find_assignment(TORCHRUN | {"TORCHELASTIC_RUN_ID": "mine"})
    assert own is not None
    with pytest.raises(UserError, match=sentence):
        peers = Peers(assignment=own, store=dist.HashStore(), started="now")
        shared_arguments(peers, arguments)


def test_what_torchrun_cannot_start_is_refused_by_all_workers(tmp_path):
    started = torchrun.start(tmp_path / "run", "+algo=allreduce", "net=slow_tcp")
    ended = started.end(100)
    assert ended.returncode != 0
    assert "add net=none" in ended.stdout + ended.stderr
    assert list(tmp_path.iterdir()) == []


def elastic(port: int, num_agents: str) -> list[str]:
    return [
        *(f"--nnodes={num_agents}", "--max-restarts=3", "--rdzv-backend=c10d", "--rdzv-id=a_run"),
        *(f"--rdzv-endpoint=localhost:{port}", "--rdzv-conf=last_call_timeout=2"),
    ]


@pytest.fixture
def port():
    with held_port() as port:
        yield port


def losses(folder):
    return {row.step: row.loss for row in load_rows(folder) if row.kind == "step"}


def workers_of(agents) -> list[int]:
    return [child for agent in agents for child in app.children(agent.pid)]


@pytest.mark.slow
def test_a_killed_worker_comes_back_from_the_last_checkpoint(tmp_path, port):
    """Two agents, as of two machines, with a worker each."""
    arguments = ("+algo=allreduce", *torchrun.SMALL, "max_steps=400", "checkpoint_every=20")
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    ended = app.run(*arguments, "workers=2", f"hydra.run.dir={calm}")  # the same values
    assert ended.returncode == 0, ended.stdout + ended.stderr
    options = elastic(port, "2")
    agents = [torchrun.start(disturbed, *arguments, options=options, workers=1) for _ in range(2)]
    app.wait_for(lambda: (newest(disturbed) or 0) >= 40, 100, "checkpoint")
    os.kill(workers_of(agents)[-1], signal.SIGKILL)
    ends = [agent.end(150) for agent in agents]
    assert [end.returncode for end in ends] == [0, 0], ends
    record = app.summary(disturbed)
    assert record["status"] == "completed"
    assert record["restarts"] == 1
    assert record["workers"] == 2
    steps = [row.step for row in load_rows(disturbed) if row.kind == "step"]
    assert steps == [*range(1, 401)]
    assert losses(disturbed) == losses(calm)


@pytest.mark.slow
def test_a_run_that_loses_a_machine_goes_on_with_the_rest(tmp_path, port):
    arguments = ("+algo=bytegrad", *torchrun.SMALL, "max_steps=1500", "checkpoint_every=20")
    folder = tmp_path / "run"
    how = {"options": elastic(port, "1:2"), "workers": 1, "environment": torchrun.GROWS}
    agents = [torchrun.start(folder, *arguments, **how)]
    app.wait_for(lambda: app.children(agents[0].pid), 60, "first agent's worker")
    agents.append(torchrun.start(folder, *arguments, **how))
    app.wait_for(lambda: (newest(folder) or 0) >= 40, 100, "checkpoint")
    app.wait_for(lambda: app.summary(folder)["workers"] == 2, 100, "second machine")
    alone = newest(folder) or 0  # before both have met, a death is noticed after their time limit
    app.wait_for(lambda: (newest(folder) or 0) > alone, 100, "checkpoint of both")
    for pid in (agents[1].pid, *app.children(agents[1].pid)):
        os.kill(pid, signal.SIGKILL)
    agents[1].end(20)
    end = agents[0].end(200)
    assert end.returncode == 0, end.stdout + end.stderr
    record = app.summary(folder)
    assert (record["status"], record["workers"]) == ("completed", 1)
    numbers = [change["workers"] for change in record["workers_over_time"]]
    assert numbers[-2:] == [2, 1]
    steps = [row.step for row in load_rows(folder) if row.kind == "step"]
    assert steps == [*range(1, 1501)]


def test_a_run_that_goes_on_with_fewer_workers_says_so(tmp_path):
    folder = tmp_path / "run"
    ended = app.run(folder, module="tests.experiments.elastic", limit_s=250)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    record = app.summary(folder)
    assert (record["status"], record["workers"]) == ("completed", 1)
    (before, after) = record["workers_over_time"]
    assert (before["workers"], after["workers"]) == (2, 1)
    assert record["steps"] == after["after_step"] + elastic_program.NUM_STEPS
    told = f"# 2 workers, 1 after step {after['after_step']}\n"
    assert (folder / "config.yaml").read_text().startswith(told)
    rows = [row for row in load_rows(folder) if row.kind == "step"]
    assert [row.step for row in rows] == [*range(1, record["steps"] + 1)]
    epochs = [row.epoch for row in rows]
    assert epochs == sorted(epochs)
    runs = load_runs(folder)
    assert len(runs) == 0 and "changed (2 workers, 1 after" in runs.attrs["apart"][0]


class Clock:
    """Of a process that waits, which nobody else has to do."""

    def __init__(self, monkeypatch):
        self.seconds = 0.0
        monkeypatch.setattr(rendezvous.time, "monotonic", lambda: self.seconds)
        monkeypatch.setattr(rendezvous.time, "sleep", self.sleep)

    def sleep(self, seconds):
        self.seconds += seconds


def test_who_does_not_come_is_named(monkeypatch):
    clock, store = Clock(monkeypatch), dist.HashStore()
    store.set("name of 1", "one")  # which dies before it has read the answer
    both = "worker 0: workers 1 and 2 have not come within 60 s"
    with pytest.raises(CommunicationError, match=both):
        rendezvous.meet(store, rank=0, world_size=3, timeout_s=60)
    assert 60 <= clock.seconds < 61
    with pytest.raises(CommunicationError, match="worker 0: worker 1 has not come within 60 s"):
        rendezvous.meet(store, rank=0, world_size=2, timeout_s=60)
    with pytest.raises(CommunicationError, match=r"worker 1: worker 0 has not come within 0\.1 s"):
        rendezvous.meet(dist.HashStore(), rank=1, world_size=2, timeout_s=0.1)


def test_a_worker_0_that_does_not_decide_is_named(monkeypatch):
    monkeypatch.setattr(peers_module, "AGAIN_S", 0.1)
    own = find_assignment(TORCHRUN)
    assert own is not None
    silent = Peers(assignment=own, store=dist.HashStore(), started="now")
    with pytest.raises(RunFailedError, match=r"worker 5: worker 0 has not said within 0\.1 s"):
        silent.hear()


def test_a_worker_whose_torchrun_is_killed_early_waits_for_no_store(tmp_path):
    """It would look for the store of a torchrun that is gone, for minutes."""
    place = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    hosts = {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    environment = TORCHRUN | place | hosts
    starter = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-m', 'experiments', 'algo=allreduce'])\n"
        "print(child.pid, flush=True)\n"
        "child.wait()\n"
    )
    with (
        held_port() as port,
        subprocess.Popen(
            [sys.executable, "-c", starter],
            env=os.environ
            | environment
            | {"MASTER_PORT": str(port), "PYTHONPATH": str(PACKAGED.parent)},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
        ) as parent,
    ):
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            maps = Path(f"/proc/{child}/maps")
            app.wait_for(lambda: "libtorch_cpu" in maps.read_text(), 60, "import of torch")
            parent.kill()
            app.wait_for(lambda: not is_alive(child), 20, "end of the worker")
        finally:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
