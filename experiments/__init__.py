"""Compose, launch, train, record, compare: the app over `bagua_algos` and `netsim`.

`python -m experiments.NAME` is the room NAME, if it is a program, else `commands/NAME.py`.
"""

from pathlib import Path

from host import commands

__path__.append(str(Path(__file__).parent / "commands"))
commands.starting()
