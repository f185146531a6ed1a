"""Compose, launch, train, record, compare: the app over `bagua_algos` and `netsim`.

`python -m experiments.NAME` is the room NAME, if it is a program, else `commands/NAME.py` or
`NAME.py` in a folder of `commands/`.
"""

from pathlib import Path

from host import commands

_PROGRAMS = Path(__file__).parent / "commands"
__path__.extend(str(_PROGRAMS / folder) for folder in ("", "checks", "benches"))
commands.starting()
