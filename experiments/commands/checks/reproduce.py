"""Makes every committed table and figure again, from the committed records, bit for bit.

python -m experiments.reproduce             what differs, and what cannot be made again
python -m experiments.reproduce --write     what differs is written anew

`results/reproduce.yaml` says how each file is made. The commands run in an empty folder, on the
unpacked records, as many at a time as there are cores. Exit codes: 0 all is the same, 1 something
differs.
"""

import os
import time

from experiments.validation.reproduce.recipe import load_recipe
from experiments.validation.reproduce.reproduce import reproduce, write
from host import commands
from host.command_line.parser import Parser
from host.conf import checkout
from host.errors import Failure
from host.words import counted


def main() -> int:
    """The command line; returns the exit code."""
    commands.raise_at_sigterm()
    parser = Parser(
        prog=commands.program("experiments.reproduce"),
        description=commands.as_called(__doc__).split("\n")[0],
    )
    parser.add_argument(
        "--write", action="store_true", help="write what differs, which git then shows"
    )
    is_written = parser.parse_args().write
    begin = time.monotonic()
    root = checkout("reproduce", needs="records and tables")
    result = reproduce(root, load_recipe(root))
    for line in result.lines():
        print(line)
    seconds, cpu = time.monotonic() - begin, os.times()
    busy = cpu.user + cpu.system + cpu.children_user + cpu.children_system
    num = len(result.different)
    took = f"{seconds:.0f} s, {busy:.0f} s of CPU"
    print(f"{counted(len(result.made), 'file')}, of which {num} differ, in {took}")
    if is_written:
        write(root, result)
    wrong = [*([] if is_written else result.different), *result.problems]
    if wrong:
        raise Failure("not what the committed records say:\n" + "\n".join(wrong))
    return 0


if __name__ == "__main__":
    commands.run(main)
