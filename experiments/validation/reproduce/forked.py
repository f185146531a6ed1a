"""Many short commands in forked children: what each of them imports takes longer than most of them,
and so it is imported once.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from experiments.runs.actions import Command
from host.cores import THREADS
from host.errors import Failure
from host.forks.side_by_side import side_by_side

_IMPORTED = (
    "experiments.advise.map.atlas",
    "experiments.advise.map.trial_times",
    "experiments.advise.tuning.trials",
    "experiments.report.tables",
    "kernels.minmax_uint8.cpu",
    "matplotlib.pyplot",
    "pyarrow.parquet",
    "scipy.stats",
    "sympy",
)
"""By most of the commands."""


def run(commands: Sequence[Command], *, at_once: int) -> None:
    """Run `python -m` with the arguments of each, so many at a time, the longest first; what they
    print is lost, but for their errors. One that fails does not keep others from running.

    Raises:
        Failure: at the end, if any of them failed.
    """
    for name in _IMPORTED:
        import_module(name)
    cores = os.environ.get(THREADS)
    works = [partial(_run, command, cores) for command in commands]
    sizes = [command.took_s or 0.0 for command in commands]
    failed = [said for said in side_by_side(works, at_once, lambda _: None, sizes) if said]
    if failed:
        raise Failure("; ".join(failed))


def _run(command: Command, cores: str | None) -> str:
    """In this child; returns what is to be said of it, "" where it did well. It may take all cores,
    or as many as `cores` says, as a process of its own might.
    """
    module, *words = command.arguments
    if cores is None:
        del os.environ[THREADS]
    else:
        os.environ[THREADS] = cores
    sys.argv = [module, *words]
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            return f"{command.lines()[0]} ended with exit code {end.code}"
    return ""
