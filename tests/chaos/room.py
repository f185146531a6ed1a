"""Rooms: a case's own namespaces of processes, network, mounts and shared memory. Nothing in a
room can reach a process outside of it, and what is left in it when a command has ended is that
command's.
"""

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from host import commands
from host.processes import fork, kill
from netsim.links.netlink import bring_up
from netsim.links.unshare import enter_network_namespace, run_in_pid_namespace
from tests import app, small_disk
from tests.forks import become
from tests.netsim.scenarios.networks import interfaces

SHARED_MEMORY = Path("/dev/shm")
OF_TORCHRUN = "torchelastic_"
"""How the name of the folder of logs begins that torchrun leaves."""

GONE_S = 10
"""How long processes may take to be gone when their command has ended."""


@dataclass(frozen=True)
class Ended:
    """How a command in a room has ended, and what it has left there."""

    code: int | None
    """As of a shell, minus the signal; None: it was still running after its limit."""
    took_s: float
    since_s: float | None
    """From what was done to it to its end; None: nothing was done."""
    done: str | None
    """What was done to it: a sentence; None: it had ended before."""
    output: str
    errors: str
    left: tuple[str, ...]


Act = Callable[[int], str | None]
"""Does something to the command with that pid when its time has come, and says what, once."""


def run_in_room(
    folder: Path, words: tuple[str, ...], act: Act, *, disk_bytes: int | None, limit_s: float
) -> Ended:
    """Run the command `words`, a module and its arguments, in a room of its own.

    Args:
        folder: `work` in it is where the command works, `tmp` is its TMPDIR.
        words: the command.
        act: is asked again and again while the command runs.
        disk_bytes: of the disk of `work`; None: it is that of `folder`.
        limit_s: the command may take, before and after `act` each.
    """
    for name in ("work", "tmp", "said"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    result = folder / "ended.json"
    result.unlink(missing_ok=True)

    def first() -> int:
        ended = _run(folder, words, act, disk_bytes, limit_s)
        result.write_text(json.dumps(asdict(ended)))
        return 0

    def porter() -> int:
        enter_network_namespace()
        return run_in_pid_namespace(first)

    pid = fork(porter)
    deadline = time.monotonic() + 3 * limit_s
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            kill(pid)  # and all that is in the room with it
            break
        time.sleep(0.02)
    if not result.exists():
        raise RuntimeError(f"the room of {' '.join(words)} has failed")
    fields: dict[str, Any] = json.loads(result.read_text())
    return Ended(**fields | {"left": tuple(fields["left"])})


def _run(
    folder: Path, words: tuple[str, ...], act: Act, disk_bytes: int | None, limit_s: float
) -> Ended:
    """The first process of the room."""
    small_disk.mount(SHARED_MEMORY, 1 << 30)
    small_disk.see_own_processes()
    bring_up("lo")
    work, said = folder / "work", folder / "said"
    if disk_bytes is not None:
        _put_on_small_disk(work, disk_bytes)
    os.chdir(work)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder / "tmp")
    os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"  # no name server is in the room
    links = interfaces()
    for name in ("output", "errors"):
        (said / name).write_text("")
    started_s = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as a shell's child has it
        commands.end_at_once()
        module, *arguments = words
        become(module, arguments, str(said / "output"), str(said / "errors"), False, {})
    code, done, done_s = _watch(pid, act, limit_s)
    ended_s = time.monotonic()
    left = _left(folder, links)
    if disk_bytes is not None:
        _take_off_small_disk(work)
    return Ended(
        code=code,
        took_s=ended_s - started_s,
        since_s=None if done_s is None else ended_s - done_s,
        done=done,
        output=(said / "output").read_text(errors="replace"),
        errors=(said / "errors").read_text(errors="replace"),
        left=tuple(left),
    )


def _watch(pid: int, act: Act, limit_s: float) -> tuple[int | None, str | None, float | None]:
    """Reap until the command has ended: its exit code; what was done to it, and when."""
    done, done_s = None, None
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        with suppress(ChildProcessError):
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == pid:
                return os.waitstatus_to_exitcode(status), done, done_s
            if ended:
                continue
        word = act(pid)
        if word is not None:
            done, done_s = (word, time.monotonic()) if done is None else (f"{done}, {word}", done_s)
            deadline = time.monotonic() + limit_s
        time.sleep(0.01)
    return None, done, done_s


def _left(folder: Path, links: list[str]) -> list[str]:
    """What is there beside the records: processes, interfaces, shared memory, temporary files."""
    deadline = time.monotonic() + GONE_S
    while (others := processes()) and time.monotonic() < deadline:
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(0.02)
    left = [f"process {pid} ({described(pid)})" for pid in others]
    for pid in others:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    left += [f"interface {name}" for name in set(interfaces()) - set(links)]
    for place in (SHARED_MEMORY, folder / "tmp"):
        files = [file.relative_to(place) for file in place.rglob("*")]
        left += [f"file {file}" for file in files if not file.parts[0].startswith(OF_TORCHRUN)]
    return left


def processes() -> list[int]:
    """All of the room but its first."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and name != "1"]


def described(pid: int) -> str:
    """Its name, state and parent."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        name = Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "gone"
    state, parent = stat.rpartition(")")[2].split()[:2]
    return f"{name}, {state}, child of {parent}"


def _put_on_small_disk(work: Path, num_bytes: int) -> None:
    """Have `work` on a disk of that size, with what is in it."""
    before = [(file, file.read_bytes()) for file in work.rglob("*") if file.is_file()]
    small_disk.mount(work, num_bytes)
    for file, content in before:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def _take_off_small_disk(work: Path) -> None:
    """Copy what is on it to the place where everybody sees it."""
    contents = [
        (file.relative_to(work), file.read_bytes())
        for file in work.rglob("*")
        if file.is_file() and file.name != small_disk.FILLING
    ]
    os.chdir("/")
    small_disk.unmount(work)
    for name, content in contents:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(content)


def tree(pid: int) -> list[int]:
    """A command's pid and those of all its descendants, parents first."""
    return [pid, *(below for child in app.children(pid) for below in tree(child))]
