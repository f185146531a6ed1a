"""Prints the path of the plugin for NCCL: `python -m bagua_net`.

    NCCL_NET_PLUGIN=$(python -m bagua_net) torchrun train.py

The library is built where it is missing.
"""

import sys

from bagua_net.library import build
from host import commands
from host.errors import UserError


def main() -> int:
    """Print the path; returns the exit code."""
    if sys.argv[1:] in (["--help"], ["-h"]):
        print(commands.as_called(__doc__))
        return 0
    if sys.argv[1:]:
        raise UserError("python -m bagua_net takes no arguments, but --help.")
    print(build())
    return 0


if __name__ == "__main__":
    commands.run(main)
