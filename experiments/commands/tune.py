"""Searches for the best values of an algorithm's, optimizer's and engine's fields.

python -m experiments.tune +algo=bytegrad net=slow_tcp trials=30
python -m experiments.tune +algo=local_sgd net=wan backend=sim workers=64 \\
    objective=time_to_accuracy trials=60

Trials of simulated workers are at work side by side, one on each core. The same command goes on
where it was stopped; several at once share one search.
"""

import sys
from importlib.util import find_spec

from experiments.advise.tuning.objectives import OBJECTIVES
from experiments.advise.tuning.ranges import FOLDER
from experiments.advise.tuning.request import SEED, read_request
from experiments.plan.messages import choices
from experiments.report.tuned import Tuning, said
from host import commands
from host.errors import UserError


def main() -> int:
    """The command line; returns the exit code."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(usage())
        return 0
    commands.raise_at_sigterm()
    if find_spec("optuna") is None:
        raise UserError("a search needs optuna: pip install 'relaxlab[tune]'")
    request = read_request(sys.argv[1:])
    with commands.importing():
        from experiments.advise.tuning.searchers import search
    show(search(request))
    return 0


def usage() -> str:
    """The help text."""
    return (
        f"usage: {commands.program('experiments.tune')} algo=CHOICE [KEY=VALUE] ... [trials=30]\n"
        f"       [objective={'|'.join(OBJECTIVES)}] [at_s=SECONDS]\n"
        f"       [ranges={','.join(choices(FOLDER))}] [folder=FOLDER]\n\n"
        "trials: how many, with those of earlier commands (default 30)\n"
        "at_once: trials at a time (default one on each core, of simulated workers)\n"
        "objective: what is to be the best (default steps_per_s); a,b: both, as a Pareto front\n"
        "at_s: seconds of the training clock, for accuracy_at\n"
        "ranges: files of conf/tune, or YAML files of your own (default: all of conf/tune);\n"
        "        what the command line sets is not searched\n"
        "folder: of the search (default results/tunes/...)\n"
        f"The other words are the app's; seed={SEED} unless given, so that scores are of others."
    )


def show(tuning: Tuning) -> None:
    """What was found, on the standard output."""
    states = [trial.state for trial in tuning.trials]
    print(f"{tuning.folder}: {', '.join(f'{states.count(s)} {s}' for s in sorted(set(states)))}")
    names = [(name, unit) for name, unit, _ in tuning.objectives]
    found = [("best", tuning.trial(number).values) for number in tuning.best]
    if tuning.defaults is not None:
        found.insert(0, ("defaults", tuning.defaults.values))
    for what, values in found:
        pairs = zip(names, values, strict=True)
        print(f"{what}: " + ", ".join(f"{name} {said(v, unit)}" for (name, unit), v in pairs))
    for command in tuning.commands:
        print(command)
    print(f"{commands.program('experiments.report')} {tuning.folder}")


if __name__ == "__main__":
    commands.run(main)
