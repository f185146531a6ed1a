"""Commands of the app in forks of one process that has imported it, which takes longer than most of
the runs here: `python -W error -m tests.experiments.forks`.

A line of its input is a JSON list of a module, the command line, and the files that output and
errors go to; a line of its answer is an exit code. It ends with its input.
"""

import importlib
import json
import os
import sys
from typing import NoReturn

import experiments.__main__
import experiments.report.__main__  # noqa: F401
from host import commands


def become(module: str, arguments: list[str], output: str, errors: str) -> NoReturn:
    """Be that command."""
    for fd, file in ((0, os.devnull), (1, output), (2, errors)):
        opened = os.open(file, os.O_RDWR | os.O_CREAT)
        os.dup2(opened, fd)
        os.close(opened)
    sys.argv = [module, *arguments]
    sys.orig_argv = [sys.executable, "-m", module, *arguments]
    commands.run(importlib.import_module(module).main)


def serve() -> int:
    """Returns in each fork, to end as any process does, and here at the end of the input."""
    for line in iter(sys.stdin.readline, ""):
        pid = os.fork()
        if pid == 0:
            become(*json.loads(line))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(serve())
