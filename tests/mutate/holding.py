"""The tests that hold the modules of a group: which of them reach a line, and which notice."""

import json

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


class TestsFailError(Exception):
    """They fail without a mutant."""


class Holding:
    """The tests of one group, in one tree."""

    def __init__(self, group: Group, tree: Tree) -> None:
        self._group, self._tree = group, tree
        self.digest = digest_of(group.files(), group.tests)
        self._tests = self._read_or_measure()

    def _read_or_measure(self) -> dict[str, dict]:
        """Test -> its seconds and the lines that it reaches."""
        digest = digest_of([*self._group.files(), *self._group.modules], self._group.tests)
        kept = FOLDER / "reach" / f"{self._group.name}-{digest}.json"
        if not kept.exists():
            plugin = Reach(self._tree.folder, self._group.modules)
            ending = run(self._tree.folder, self._group.tests, plugin, BASELINE_LIMIT_S)
            if ending.code != 0:
                raise TestsFailError(ending.told or f"{self._group.name}, {ending}")
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(ending.told)
        return json.loads(kept.read_text())

    def try_(self, mutant: Mutant) -> Outcome:
        """Whether a test notices the mutant. Tests that do not end have noticed it."""
        names = self._reaching(mutant)
        seconds = sum(self._tests[name]["seconds"] for name in names)
        limit_s = LEAST_LIMIT_S + SLOWER * seconds
        with self._tree.with_text(mutant.path, mutant.source()):
            ending = run(self._tree.folder, ["-x", *names], FirstFailure(), limit_s)
        by = _noticed_by(ending)
        return Outcome(mutant.name, mutant.around, self.digest, by, round(ending.seconds, 1))

    def _reaching(self, mutant: Mutant) -> list[str]:
        """The tests that reach its line, the shortest first, then the others of their files, which
        may look at what those have made. All, where none was seen there: it is run by imports, by
        compiled code, or by other processes.
        """
        reach = {name for name, test in self._tests.items() if _reaches(test["lines"], mutant)}
        files = {_file(name) for name in reach if mutant.function}
        found = [name for name in self._tests if not files or _file(name) in files]
        return sorted(found, key=lambda name: (name not in reach, self._tests[name]["seconds"]))


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
