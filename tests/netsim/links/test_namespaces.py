import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from host.processes import end_of, fork
from netsim.conditions.condition import NetworkCondition
from netsim.errors import NamespaceError
from netsim.links.namespaces import Hub, _report_and_wait, check_permitted


def links_in_this_namespace() -> list[str]:
    lines = Path("/proc/net/dev").read_text().splitlines()
    names = [line.split(":")[0].strip() for line in lines if ":" in line]
    return [name for name in names if name == "hub" or name.startswith("worker")]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"  # dead, though nobody has asked for its exit code


def assert_soon_dead(pids: list[int]) -> None:
    deadline = time.monotonic() + 60
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, [pid for pid in pids if is_alive(pid)]
        time.sleep(0.02)


@pytest.mark.parametrize("num_workers", [0, 1024])
def test_a_bridge_has_ports_for_1_to_1023_workers(num_workers):
    with pytest.raises(ValueError, match=f"num_workers has to be 1 to 1023, not {num_workers}"):
        Hub(NetworkCondition(), num_workers)


@pytest.mark.root
def test_more_workers_speak_to_each_other_than_the_hosts_arp_has_room_for(scenario):
    """40 x 39 addresses, where Linux's ARP keeps 1,024 for all namespaces together."""
    assert scenario("everyone_speaks_to_everyone") == [39] * 40


@pytest.mark.root
def test_what_a_network_refuses_is_known_before_a_run(scenario):
    del scenario  # it skips where the host forbids namespaces
    check_permitted(NetworkCondition(rate_mbit=10), 128)
    with pytest.raises(ValueError, match="num_workers has to be 1 to 1023, not 1024"):
        check_permitted(NetworkCondition(), 1024)
    with pytest.raises(NamespaceError, match="has 500 ports and 501 workers were asked for"):
        check_permitted(NetworkCondition(backend="switch"), 501)
    with pytest.raises(ValueError, match="faults names the rank 3, and 2 workers"):
        fault = {"worker": 3, "at_s": 1, "for_s": 1}
        check_permitted(NetworkCondition(faults=[fault]), 2)


@pytest.mark.root
def test_what_a_worker_s_namespace_lacks_is_said_in_one_sentence(capfd):
    with pytest.raises(NamespaceError, match="to use nosuch on eth0"):
        check_permitted(NetworkCondition(congestion_control="nosuch"), 2)
    assert capfd.readouterr().err == ""


@pytest.mark.root
def test_a_worker_that_dies_while_its_link_is_made_is_named(monkeypatch, capfd):
    monkeypatch.setattr(Hub, "_set_up_worker", lambda hub, rank: os._exit(3))
    with pytest.raises(NamespaceError, match="worker 0 ended with exit code 3 before it had bro"):
        check_permitted(NetworkCondition(), 1)
    assert capfd.readouterr().err == ""


def test_the_import_is_cheap():
    code = "import sys, netsim.links.namespaces, netsim.proof.tcp_rate; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "netsim.proof.tcp_rate" in modules.split()
    assert not {"pyroute2", "asyncio", "numpy", "torch"} & set(modules.split())


@pytest.mark.root
def test_workers_have_an_interface_of_their_own_and_cubic(scenario):
    sender, receiver, bystander, _ = scenario("traffic")
    assert [w["interfaces"] for w in (sender, receiver, bystander)] == [["eth0", "lo"]] * 3
    assert [w["route_algorithm"] for w in (sender, receiver, bystander)] == ["cubic"] * 3
    assert [w["socket_algorithm"] for w in (sender, receiver)] == ["cubic"] * 2


@pytest.mark.root
def test_a_worker_that_raises_exits_with_1(scenario):
    assert scenario("failure") == 1


@pytest.mark.root
def test_ten_networks_leave_nothing_behind(scenario):
    before, after = scenario("cycles")
    assert before == after


@pytest.mark.root
def test_an_ordinary_user_may_do_the_same(scenario):
    outcome = scenario("ordinary_user")
    assert outcome["uid"] != 0
    if outcome["error"]:
        pytest.skip(outcome["error"])
    sender, receiver, _, failed = outcome["traffic"]
    assert not failed
    assert sender["sent"] > 1_000_000 < receiver["received"]
    assert sender["qdisc"]["rate"] == 12_500_000


@pytest.mark.root
def test_killing_the_hub_ends_its_workers(waiting_network):
    _, [_, hub, *workers] = waiting_network
    assert all(map(is_alive, workers))
    assert not links_in_this_namespace()
    os.kill(hub, signal.SIGKILL)
    assert_soon_dead([hub, *workers])
    assert not links_in_this_namespace()


def test_a_worker_in_the_making_whose_hub_is_gone_ends_without_a_word(capfd):
    """The kernel closes what a killed hub had open before it kills the hub's children."""
    ours, theirs = socket.socketpair()

    def be_made() -> int:
        ours.close()
        _report_and_wait(theirs)
        raise AssertionError("it went on with half a link")

    pid = fork(be_made)
    theirs.close()
    assert ours.recv(1)
    ours.close()
    assert end_of(pid) == "ended with exit code 1"
    assert capfd.readouterr().err == ""


@pytest.mark.root
def test_killing_the_launcher_ends_everything(waiting_network):
    launcher, [launcher_pid, hub, *workers] = waiting_network
    assert launcher_pid == launcher.pid
    assert all(map(is_alive, [hub, *workers]))
    assert not links_in_this_namespace()
    launcher.kill()
    assert_soon_dead([launcher_pid, hub, *workers])
    assert not links_in_this_namespace()
