"""Do the tests notice a wrong line? One operator, constant, condition or effect at a time is made
wrong in a module, and the tests that hold it run; a mutant that passes them all is printed.

    python -m tests.mutate                                      all modules of map.yaml
    python -m tests.mutate records experiments/runs/load.py     groups of it, and modules
    python -m tests.mutate --share 0.1 --minutes 30             a tenth of the mutants, half an hour
    python -m tests.mutate --share 0.1 --beyond 0.05            of that what 0.05 had not drawn
    python -m tests.mutate --table                              what is known, and no more

A larger share holds the mutants of a smaller one; what is beyond the smaller says how the tests do
that its survivors asked for. What is known is kept in build/mutate: the
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


class Draw(NamedTuple):
    """Which mutants are drawn: those below `share`, but none below `beyond`."""

    share: float
    beyond: float = 0.0

    def of(self, module: str) -> list[Mutant]:
        """All that are drawn of a module."""
        return [m for m in mutants(module) if self.beyond <= m.chance < self.share]


class Score(NamedTuple):
    """Of a module's mutants, or of a share of them."""

    module: str
    num_mutants: int
    num_tried: int
    num_equivalent: int
    num_noticed_at_first: int
    """By the tests that there were when each was tried for the first time."""
    num_noticed: int

    @property
    def viable(self) -> int:
        """Those tried that a test could notice."""
        return self.num_tried - self.num_equivalent

    def __str__(self) -> str:
        share = f"{100 * self.num_noticed / self.viable:.0f} %" if self.viable else "-"
        return f"| `{self.module}` | {' | '.join(map(str, self[1:]))} | {share} |"


HEAD = """| module | mutants | tried | equivalent | noticed at first | noticed now | of the viable |
| --- | --: | --: | --: | --: | --: | --: |"""


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
    draw = Draw(options.share, options.beyond)
    with Tree(FOLDER / f"tree{options.job}") as tree:
        for group, modules in chosen(options.names):
            drawn = [m for module in modules for m in viable(draw.of(module), known)]
            if drawn and time.monotonic() < deadline:
                holding = Holding(group, tree)
                for mutant in drawn:
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


def viable(drawn: list[Mutant], known: dict[tuple[str, str], str]) -> list[Mutant]:
    """Those that a test could notice."""
    return [mutant for mutant in drawn if not is_equivalent(mutant, known)]


def score(module: str, draw: Draw, known: dict[tuple[str, str], str]) -> Score:
    """Of what is known. A survivor of other tests counts as one."""
    outcomes, drawn = Outcomes(module), draw.of(module)
    found = [outcome for m in viable(drawn, known) if (outcome := outcomes.latest(m))]
    firsts = [outcome for m in viable(drawn, known) if (outcome := outcomes.first(m))]
    num_equivalent = len(drawn) - len(viable(drawn, known))
    return Score(
        module,
        len(mutants(module)),
        len(found) + num_equivalent,
        num_equivalent,
        sum(bool(outcome.noticed_by) for outcome in firsts),
        sum(bool(outcome.noticed_by) for outcome in found),
    )


def total(scores: list[Score]) -> Score:
    """Of several modules."""
    return Score("all", *(sum(column) for column in list(zip(*scores, strict=True))[1:]))


def gone(modules: list[str], known: dict[tuple[str, str], str]) -> list[tuple[str, str]]:
    """Of what is said to be equivalent: the code has changed."""
    there = {(mutant.path, mutant.name) for module in modules for mutant in mutants(module)}
    return [entry for entry in known if entry[0] in modules and entry not in there]


def main() -> int:
    """The command line; returns the exit code: 0 where all that was tried is noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate")
    parser.add_argument("names", nargs="*", help="groups or modules of map.yaml (default: all)")
    parser.add_argument("--share", type=float, default=1.0, help="of the mutants (default: all)")
    parser.add_argument("--beyond", type=float, default=0.0, help="none of this smaller share")
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
    draw = Draw(options.share, options.beyond)
    scores = [s for s in (score(module, draw, known) for module in modules) if s.num_tried]
    print(HEAD, *scores, *([total(scores)] if scores else []), sep="\n")
    for path, name in gone(modules, known):
        print(f"No mutant of {path} any more, take it out of equivalent.yaml: {name}")
    return int(any(s.num_noticed < s.viable for s in scores))


if __name__ == "__main__":
    sys.exit(main())
