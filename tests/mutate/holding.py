"""The tests that hold the modules of a group: which of them reach a line, and which notice."""

import json
from collections.abc import Sequence
from typing import Any

from tests.mutate.kept import FOLDER, Outcome, digest_of
from tests.mutate.mutants import Mutant
from tests.mutate.plan import Group
from tests.mutate.tree import Tree
from tests.mutate.trial import Ending, FirstFailure, Reach, run

LEAST_LIMIT_S = 60.0
SLOWER = 5.0
"""A mutant may take so much longer than the tests did, before that counts as noticed."""
BASELINE_LIMIT_S = 3600.0
NO_TESTS = 5


Known = dict[str, dict[str, Any]]
"""Of each test: its seconds, and the lines of modules that it reaches."""


class TestsFailError(Exception):
    """They fail without a mutant."""


class Holding:
    """The tests of one group, in one tree."""

    def __init__(self, group: Group, tree: Tree) -> None:
        self._group, self._tree = group, tree
        self.digest = digest_of(group.files(), [*group.tests, *group.wider])
        self._tests = self._read_or_measure("tests", group.tests)

    def _read_or_measure(self, name: str, tests: Sequence[str]) -> Known:
        """What is known of these tests, which is kept, too."""
        digest = digest_of([*self._group.files(), *self._group.modules], tests)
        kept = FOLDER / "reach" / f"{self._group.name}-{name}-{digest}.json"
        if not kept.exists():
            plugin = Reach(self._tree.folder, self._group.modules)
            ending = run(self._tree.folder, tests, plugin, BASELINE_LIMIT_S)
            if ending.code != 0:
                raise TestsFailError(ending.told or f"{self._group.name}, {ending}")
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(ending.told)
        return json.loads(kept.read_text())

    def try_(self, mutant: Mutant) -> Outcome:
        """Whether a test notices the mutant. Tests that do not end have noticed it."""
        by, seconds = self._noticed(mutant, self._tests)
        if not by and self._group.wider:
            wider = self._read_or_measure("wider", self._group.wider)
            by, more_seconds = self._noticed(mutant, wider)
            seconds += more_seconds
        return Outcome(mutant.name, mutant.around, self.digest, by, round(seconds, 1))

    def _noticed(self, mutant: Mutant, tests: Known) -> tuple[str, float]:
        """By which test, and the seconds that it took."""
        names = _reaching(mutant, tests)
        limit_s = LEAST_LIMIT_S + SLOWER * sum(tests[name]["seconds"] for name in names)
        with self._tree.with_text(mutant.path, mutant.source()):
            ending = run(self._tree.folder, ["-x", *names], FirstFailure(), limit_s)
        return _noticed_by(ending), ending.seconds


def _reaching(mutant: Mutant, tests: Known) -> list[str]:
    """The tests that reach its line, the shortest first, then the others of their files, which may
    look at what those have made. All, where none was seen there: it is run by imports, by compiled
    code, or by other processes.
    """
    reach = {name for name, test in tests.items() if _reaches(test["lines"], mutant)}
    files = {_file(name) for name in reach if mutant.function}
    found = [name for name in tests if not files or _file(name) in files]
    return sorted(found, key=lambda name: (name not in reach, tests[name]["seconds"]))


def _reaches(lines: list[tuple[str, int]], mutant: Mutant) -> bool:
    first, last = mutant.span
    return any(path == mutant.path and first <= line <= last for path, line in lines)


def _file(test: str) -> str:
    return test.partition("::")[0]


def _noticed_by(ending: Ending) -> str:
    assert ending.code != NO_TESTS, "no test was found"
    if ending.code is None:
        return "time"
    return ending.told or "import" if ending.code else ""
