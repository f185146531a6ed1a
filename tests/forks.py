"""Commands of the app, and programs of the tests, in forks of one process that has imported all
that they need, which takes longer than most of the runs here: `python -W error -m tests.forks NAME
ROOT` is there once it has ended, and leaves that process behind, for all test processes together.

It listens at NAME among the abstract sockets, works in the folder ROOT, and ends with the last of
its connections. A line of a connection is a JSON list. [module, command line, file of its output,
file of its errors, whether a warning is an error, variables of its environment] begins a command:
the answer is the pid. [pid] waits for its end: the answer is the exit code.
"""

import atexit
import errno
import importlib
import json
import os
import pkgutil
import runpy
import select
import socket
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from host import commands
from tests.paths import ROOT

ROOMS = (
    *("experiments.plan", "experiments.tasks", "experiments.models", "experiments.training"),
    *("experiments.real", "experiments.simulated", "experiments.runs", "experiments.report"),
    *("experiments.advise", "experiments.predict", "bagua_algos", "netsim"),
)
LEFT_OUT = (
    *("bagua_algos.trainers.", "experiments.runs.trackers.", "netsim.validation."),
    *("experiments.tasks.baselines", "experiments.report.display"),
)
"""What few commands need, and takes half a second and more."""

IMPORTED = (
    *("experiments.__main__", "experiments.advise.__main__", "experiments.report.__main__"),
    *("experiments.commands.calibrate", "experiments.commands.compare"),
    *("experiments.commands.watch", "experiments.commands.surface"),
    *("pandas", "pyarrow.parquet", "scipy.stats", "matplotlib.pyplot", "seaborn"),
    *("pyroute2", "antlr4", "psutil", "rich.console", "rich.progress", "sqlite3"),
    *("torch.distributed.fsdp", "torch.distributed.run"),
)


def become(
    module: str,
    arguments: list[str],
    output: str,
    errors: str,
    strict: bool,
    environment: dict[str, str],
) -> NoReturn:
    """Be that command, or what `python -m module` runs."""
    os.environ |= environment
    for fd, file in ((0, os.devnull), (1, output), (2, errors)):
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, fd)
        os.close(opened)
    sys.argv = [module, *arguments]
    sys.orig_argv = [sys.executable, "-m", module, *arguments]
    if not strict:
        warnings.resetwarnings()
    if module == "experiments.__main__":
        shorten_rehearsals()
    if module.partition(".")[0] in ("tests", "torch"):
        run_to_its_end(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))
    commands.end_at_once()  # as its package does, so that `run` notes each Ctrl-C
    run_to_its_end(lambda: commands.run(importlib.import_module(module).main))


def shorten_rehearsals() -> None:
    """A run without a profile measures one: no test asks how exact that of a fork is."""
    simulate: Any = importlib.import_module("experiments.simulated.simulate")
    simulate.rehearse = importlib.import_module("tests.short_rehearsals").rehearse_shortly


def run_to_its_end(command: Callable[[], object]) -> NoReturn:
    """End as any process does, but leave what all forks share: to take it apart would copy it."""
    code = 1
    try:
        command()
        code = 0
    except SystemExit as ending:
        code = int(ending.code or 0)
    except BaseException:
        traceback.print_exc()
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def import_all() -> None:
    """Before the first fork: nearly all that commands import late, parsers that are slow at first,
    and files of conf/.
    """
    for module in IMPORTED:
        importlib.import_module(module)
    for room in ROOMS:
        for module in _modules(room):
            importlib.import_module(module)
    importlib.import_module("experiments.plan.compose").compose_config(["algo=allreduce"])
    importlib.import_module("tests.warm").before_forks()


def _modules(package: str) -> Iterator[str]:
    """Of a package and of those in it, but programs and what is left out."""
    for module in pkgutil.walk_packages([str(ROOT / package.replace(".", "/"))], f"{package}."):
        if not module.name.startswith(LEFT_OUT) and not module.name.endswith("__main__"):
            yield module.name


def serve(listener: socket.socket) -> None:
    """Until the last connection has ended."""
    import_all()
    lines: dict[socket.socket, bytes] = {listener.accept()[0]: b""}
    while lines:
        for ready in select.select([listener, *lines], [], [])[0]:
            if ready is listener:
                lines[listener.accept()[0]] = b""
            elif received := ready.recv(65536):
                *whole, lines[ready] = (lines[ready] + received).split(b"\n")
                for line in whole:
                    ready.sendall(b"%d\n" % _answer(json.loads(line), [listener, *lines]))
            else:
                del lines[ready]
                ready.close()


def _answer(words: list, sockets: list[socket.socket]) -> int:
    if len(words) == 1:
        return os.waitstatus_to_exitcode(os.waitpid(words[0], 0)[1])
    pid = os.fork()
    if pid == 0:
        for one in sockets:
            one.close()
        become(*words)
    return pid


def main(name: str, root: Path) -> None:
    """Leave the process behind, unless another one listens at that name."""
    os.chdir(root)
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(f"\0{name}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return
        listener.listen()
        if os.fork() == 0:
            serve(listener)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
