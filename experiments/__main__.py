"""Trains: one run, a sweep or a study. `python -m experiments +algo=bytegrad net=slow_tcp`

Exit codes: 0 done (a run that diverged is a result), 1 a run failed, 2 nothing was run because of
what the command asks for, 128 + the signal that stopped it.
"""

# What a run needs takes seconds to import. It is imported late, so that the help text and a mistake
# in the command line take none.

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.plugins import Plugins
from omegaconf import DictConfig

from experiments.plan.messages import is_of_hydra, sentence, usage
from experiments.plan.overrides import normalize_overrides, values_of, with_saved_overrides
from experiments.plan.schema import KEYS
from experiments.plan.search_path import compose_once, find_own_files
from experiments.real.assignment import find_assignment
from experiments.runs.job import run_job
from host import commands, conf
from host.command_line.parser import Parser
from host.commands import program
from host.errors import UserError
from host.output import ANOTHER_RUN_DIR, writing
from host.processes import dying_with_parent

if TYPE_CHECKING:
    from experiments.real.peers import Peers
    from experiments.runs.study import RunOutcome


def main() -> int:
    """Run what the command line asks for; returns the exit code."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(usage())
        return 0
    commands.raise_at_sigterm()
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises, and the sentence is ours
    outcomes: list[RunOutcome] = []
    started: list[bool] = []
    try:
        _run(_peers(), started, outcomes)
    except Exception as error:
        if is_of_hydra(error):
            raise UserError(sentence(error)) from error
        if started or not isinstance(error, OSError):
            raise
        with writing(Path(error.filename or "the run's folder"), ANOTHER_RUN_DIR):
            raise
    return 1 if "failed" in [outcome.status for outcome in outcomes] else 0


def _peers() -> Peers | None:
    """The other processes that torchrun or srun has started for this run; None without one."""
    assignment = find_assignment(os.environ)
    if assignment is None:
        return None
    # Else a worker whose torchrun was killed would wait for minutes for a store that nobody has.
    with dying_with_parent() if assignment.starter == "torchrun" else nullcontext():
        with commands.importing():
            from experiments.real.peers import join
        return join(assignment)


def _run(peers: Peers | None, started: list[bool], outcomes: list[RunOutcome]) -> None:
    """Have Hydra run what the command line asks for; adds to `started` and `outcomes` what runs in
    this process.
    """
    options, words = divided(_arguments(peers))
    sys.argv[1:] = [*options, *normalize_overrides(with_saved_overrides(words))]
    find_own_files()
    compose_once()
    # After the search for plugins, which would make these classes a second time. Hydra looks in
    # fewer places than Python.
    from hydra_plugins.relaxlab.study_sweeper import StudySweeper

    Plugins.instance().register(StudySweeper)
    if not {"-m", "--multirun"} & set(sys.argv) and "hydra/launcher" in values_of(sys.argv[1:]):
        commands.say("hydra/launcher counts with -m alone: this run starts here")

    @hydra.main(version_base="1.3", config_path=str(conf.PACKAGED), config_name="config")
    def app(config: DictConfig) -> RunOutcome:
        started.append(True)
        outcome = run_job(config, peers)
        outcomes.append(outcome)
        return outcome

    app()
    refusal = next((outcome for outcome in outcomes if outcome.status == "refused"), None)
    if refusal is not None:
        raise UserError(refusal.reason)


def _arguments(peers: Peers | None) -> list[str]:
    """Those of worker 0, where there are several."""
    if peers is None:
        return sys.argv[1:]
    with commands.importing():
        from experiments.runs.peer_run import shared_arguments
    return shared_arguments(peers, sys.argv[1:])


def divided(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Hydra's options, which it takes before all other words alone, and these. Raises `UserError`
    for an option that it does not have.
    """
    parser = Parser(parents=[get_args_parser()], add_help=False, prog=program("experiments"))
    parser.keys = KEYS
    arguments = _with_choice(arguments)
    words = parser.parse_intermixed_args(arguments).overrides
    left = list(words)
    options = []
    for argument in arguments:
        if left and argument == left[0]:
            left.pop(0)
        else:
            options.append(argument)
    return options, words


def _with_choice(arguments: Sequence[str]) -> list[str]:
    """Hydra's --info without a choice as --info=all, so that it takes no other word for one."""
    following = [*arguments[1:], "-"]
    is_alone = [word.startswith("-") or "=" in word for word in following]
    return [
        "--info=all" if argument in ("--info", "-i") and alone else argument
        for argument, alone in zip(arguments, is_alone, strict=True)
    ]


if __name__ == "__main__":
    commands.run(main)
