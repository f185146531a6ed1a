"""Serves the page of a report, live, on this machine alone, while runs go on.

python -m experiments.watch results/runs [--port 8642]

The page is made again when a record changes. Ctrl-C ends it.
"""

# What makes the page takes seconds to import. It is imported once the command line was looked at.

import os
from pathlib import Path

from experiments.report.__main__ import check_extra
from experiments.runs.load import check_runs
from host import commands
from host.command_line.parser import Parser

PORT = 8642
_MAX_PORT = 65535
_NICE = 10  # runs that are measured beside it go first


def main() -> int:
    """The command line."""
    parser = Parser(
        prog=commands.program("experiments.watch"),
        description=commands.as_called(__doc__).split("\n")[0],
    )
    parser.add_argument("dir", metavar="DIR", type=Path, help="a folder of runs")
    parser.add_argument(
        "--port", type=int, default=PORT, help=f"of 127.0.0.1; 0 for any (default {PORT})"
    )
    arguments = parser.parse_args()
    if not 0 <= arguments.port <= _MAX_PORT:
        parser.error(f"--port must be between 0 and {_MAX_PORT}, got {arguments.port}")
    check_extra()
    check_runs(arguments.dir)
    with commands.importing():
        from experiments.report.page.serve import watch
    os.nice(_NICE)
    watch(arguments.dir, arguments.port, lambda url: print(url, flush=True))
    return 0


if __name__ == "__main__":
    commands.run(main)
