"""Do the tests notice a wrong line? One operator, constant, condition or effect at a time is made
wrong in a module, and the tests that hold it run; a mutant that passes them all is printed.

    python -m tests.mutate                                      all modules of map.yaml
    python -m tests.mutate records experiments/runs/load.py     groups of it, and modules
    python -m tests.mutate --share 0.1 --minutes 30             a tenth of the mutants, half an hour
    python -m tests.mutate --table                              what is known, and no more

A larger share holds the mutants of a smaller one. What is known is kept in build/mutate: the
command goes on where it was killed, and tries survivors again where tests have changed.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from tests.mutate.holding import Holding, TestsFailError
from tests.mutate.kept import FOLDER, Outcomes
from tests.mutate.mutants import Mutant, mutants
from tests.mutate.plan import Group, equivalents, groups, is_equivalent
from tests.mutate.tree import Tree
from tests.mutate.trial import import_once


class Score(NamedTuple):
    """Of a module's mutants, or of a share of them."""

    module: str
    num_mutants: int
    num_tried: int
    num_noticed: int
    num_equivalent: int

    @property
    def viable(self) -> int:
        """Those tried that a test could notice."""
        return self.num_tried - self.num_equivalent

    def __str__(self) -> str:
        share = f"{100 * self.num_noticed / self.viable:.0f} %" if self.viable else "-"
        numbers = self.num_mutants, self.num_tried, self.num_equivalent, self.num_noticed
        return f"| `{self.module}` | {' | '.join(map(str, numbers))} | {share} |"


HEAD = """| module | mutants | tried | equivalent | noticed | of the viable |
| --- | --: | --: | --: | --: | --: |"""


def chosen(names: list[str]) -> Iterator[tuple[Group, list[str]]]:
    """The groups, and which modules of them; all without a name."""
    for group in groups():
        modules = [m for m in group.modules if not names or group.name in names or m in names]
        if modules:
            yield group, modules


def try_all(options: argparse.Namespace) -> None:
    """What is not known yet, until the time is over."""
    import_once()
    deadline = time.monotonic() + 60 * options.minutes
    known = equivalents()
    with Tree(FOLDER / f"tree{options.job}") as tree:
        for group, modules in chosen(options.names):
            holding = Holding(group, tree)
            for module in modules:
                for mutant in drawn(module, options.share, known):
                    if time.monotonic() < deadline:
                        try_once(mutant, holding)


def try_once(mutant: Mutant, holding: Holding) -> None:
    """Unless its outcome is known; and say so if nothing notices it."""
    outcomes = Outcomes(mutant.path)
    if outcomes.of(mutant, holding.digest) is None:
        outcome = holding.try_(mutant)
        outcomes.keep(outcome)
        if not outcome.noticed_by:
            print(f"{mutant.path}:{mutant.line}: {mutant.name}", flush=True)


def drawn(module: str, share: float, known: dict[tuple[str, str], str]) -> list[Mutant]:
    """The share's mutants that a test could notice."""
    return [m for m in mutants(module) if m.chance < share and not is_equivalent(m, known)]


def score(module: str, share: float, known: dict[tuple[str, str], str]) -> Score:
    """Of what is known. A survivor of other tests counts as one."""
    outcomes, all_mutants = Outcomes(module), mutants(module)
    share_s = [mutant for mutant in all_mutants if mutant.chance < share]
    equivalent = [mutant for mutant in share_s if is_equivalent(mutant, known)]
    viable = [mutant for mutant in share_s if not is_equivalent(mutant, known)]
    found = [outcome for mutant in viable if (outcome := outcomes.latest(mutant))]
    noticed = [outcome for outcome in found if outcome.noticed_by]
    num_tried = len(found) + len(equivalent)
    return Score(module, len(all_mutants), num_tried, len(noticed), len(equivalent))


def gone(modules: list[str], known: dict[tuple[str, str], str]) -> list[tuple[str, str]]:
    """Of what is said to be equivalent: the code has changed."""
    there = {(mutant.path, mutant.name) for module in modules for mutant in mutants(module)}
    return [entry for entry in known if entry[0] in modules and entry not in there]


def main() -> int:
    """The command line; returns the exit code: 0 where all that was tried is noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate")
    parser.add_argument("names", nargs="*", help="groups or modules of map.yaml (default: all)")
    parser.add_argument("--share", type=float, default=1.0, help="of the mutants (default: all)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which it stops")
    parser.add_argument("--job", type=int, default=0, help="a number for each of several at a time")
    parser.add_argument("--table", action="store_true", help="print what is known, try none")
    options = parser.parse_args()
    try:
        if not options.table:
            try_all(options)
    except TestsFailError as error:
        parser.exit(2, f"The tests fail without any mutant, mend them first: {error}\n")
    known = equivalents()
    modules = [module for _, modules in chosen(options.names) for module in modules]
    scores = [s for s in (score(module, options.share, known) for module in modules) if s.num_tried]
    print(HEAD, *scores, sep="\n")
    for path, name in gone(modules, known):
        print(f"No mutant of {path} any more, take it out of equivalent.yaml: {name}")
    return int(any(s.num_noticed < s.viable for s in scores))


if __name__ == "__main__":
    sys.exit(main())
