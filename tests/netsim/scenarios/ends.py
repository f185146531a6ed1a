"""How networks end, and what they leave behind."""

import ctypes
import json
import os
import random
import signal
import tempfile
import time
from contextlib import suppress

from host.processes import fork
from netsim.conditions.condition import NetworkCondition
from netsim.errors import NamespaceError
from netsim.links.namespaces import Hub, check_permitted
from tests.netsim.scenarios.networks import SLOW, interfaces, run


def failure() -> int:
    """The exit status of a hub whose worker 1 raises."""

    def work(hub: Hub, rank: int) -> None:
        assert rank != 1, "worker 1 fails on purpose"

    return run(SLOW, 2, work)[-1]


def cycles() -> list:
    """File descriptors, children and links of the host before and after ten networks."""
    before = holdings()
    for _ in range(10):
        run(SLOW, 2, lambda hub, rank: None)
    check_permitted(SLOW)
    return [before, holdings()]


def random_kills(num_cycles: int = 8) -> list:
    """Holdings before and after networks of which a process, drawn at random, is killed."""
    pr_set_child_subreaper = 36  # whoever of a network is left over becomes a child of this process
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1, 0, 0, 0)
    chosen = random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        before = holdings() | {"files": os.listdir(folder)}
        for _ in range(num_cycles):
            kill_one(chosen)
        return [before, holdings() | {"files": os.listdir(folder)}]


def many_random_kills() -> list:
    return random_kills(30)


def kill_one(chosen: random.Random) -> None:
    """Make a network and kill one of its processes; returns when the last is gone."""
    reader, writer = os.pipe()
    launcher = fork(lambda: hold_network(writer))
    os.close(writer)
    with os.fdopen(reader) as pipe:
        pids = [launcher, *json.loads(pipe.readline())]
        assert len(namespaces()) == 4, "this process's, the hub's, and two workers'"
        os.kill(chosen.choice(pids), signal.SIGKILL)
        assert not pipe.read(), "the end of the pipe is the end of all that hold it"
    deadline = time.monotonic() + 60
    with suppress(ChildProcessError):
        while True:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                assert time.monotonic() < deadline, descendants(os.getpid())
                time.sleep(0.002)


def hold_network(writer: int) -> int:
    """The launcher: its hub, switch and workers live until one of them is killed."""

    def run_hub() -> int:
        hub = Hub(NetworkCondition(rate_mbit=100, backend="switch"), 2)
        pids = hub.fork_workers(lambda rank: time.sleep(60) or 0)
        assert hub.switch is not None
        os.write(writer, json.dumps([os.getpid(), hub.switch.pid, *pids]).encode() + b"\n")
        with suppress(NamespaceError):
            os.wait()
        return 1

    os.waitpid(fork(run_hub), 0)
    return 1


def wait_to_be_killed() -> None:
    """Print the pids of launcher, hub and workers, and keep them all alive."""

    def run_hub() -> int:
        pids = Hub(SLOW, 3).fork_workers(lambda rank: time.sleep(60) or 0)
        print(json.dumps([os.getppid(), os.getpid(), *pids]), flush=True)
        return os.waitpid(next(iter(pids)), 0)[1]

    os.waitpid(fork(run_hub), 0)


def holdings() -> dict:
    try:
        os.waitpid(-1, os.WNOHANG)
        has_children = True
    except ChildProcessError:
        has_children = False
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "has_children": has_children,
        "namespaces": namespaces(),
        "interfaces": interfaces(),
    }


def namespaces() -> list[str]:
    """Network namespaces that this process or a descendant is in or has open: those that live."""
    found = set()
    for pid in [os.getpid(), *descendants(os.getpid())]:
        with suppress(OSError):  # it has ended
            names = ["ns/net", *(f"fd/{number}" for number in os.listdir(f"/proc/{pid}/fd"))]
            for name in names:
                with suppress(OSError):  # the descriptor that listed them
                    found.add(os.readlink(f"/proc/{pid}/{name}"))
    return sorted(link for link in found if link.startswith("net:"))


def descendants(pid: int) -> list[int]:
    with suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        children = [int(child) for child in file.read().split()]
        return children + [pid for child in children for pid in descendants(child)]
    return []
