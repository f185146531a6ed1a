"""Commands of the app in forks of one process that has imported it, which takes longer than most of
the runs here: `python -W error -m tests.experiments.forks`.

A line of its input is a JSON list. [module, command line, file of its output, file of its errors]
begins a command: the answer is the pid. [pid] waits for its end: the answer is the exit code. It
ends with its input.
"""

import importlib
import json
import os
import sys
from typing import NoReturn

from host import commands
from tests import warm


def become(module: str, arguments: list[str], output: str, errors: str) -> NoReturn:
    """Be that command."""
    for fd, file in ((0, os.devnull), (1, output), (2, errors)):
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, fd)
        os.close(opened)
    sys.argv = [module, *arguments]
    sys.orig_argv = [sys.executable, "-m", module, *arguments]
    commands.run(importlib.import_module(module).main)


def serve() -> int:
    """Returns in each fork, to end as any process does, and here at the end of the input."""
    warm.before_forks()
    for line in iter(sys.stdin.readline, ""):
        words = json.loads(line)
        if len(words) == 1:
            answer = os.waitstatus_to_exitcode(os.waitpid(words[0], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                become(*words)
        print(answer, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(serve())
