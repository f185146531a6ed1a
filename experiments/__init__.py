"""Compose, launch, train, record, compare: the app over `bagua_algos` and `netsim`.

`python -m experiments.NAME` is the room NAME, if it is a program, else `commands/NAME.py` or
`commands/benches/NAME.py`.
"""

from pathlib import Path

from host import commands

_PROGRAMS = Path(__file__).parent / "commands"
__path__.extend([str(_PROGRAMS), str(_PROGRAMS / "benches")])
commands.starting()
