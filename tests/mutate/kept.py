"""What is known of mutants, kept as it comes to be known: a run that is killed goes on."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.mutate.mutants import Mutant

FOLDER = Path("build/mutate")


@dataclass(frozen=True)
class Outcome:
    """Of one mutant."""

    name: str
    around: str
    """The digest of the text around it; in another text it is another mutant."""
    tests: str
    """The digest of the tests. What they have not noticed, others may notice."""
    noticed_by: str
    """The first test that failed; "" where none did."""
    seconds: float


class Outcomes:
    """Of the mutants of one module."""

    def __init__(self, module: str) -> None:
        self._file = FOLDER / f"{module.removesuffix('.py').replace('/', '.')}.jsonl"
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        read = [Outcome(**json.loads(line)) for line in lines if line.endswith("}")]
        self._known = {outcome.name: outcome for outcome in read}
        self._first = {(outcome.name, outcome.around): outcome for outcome in reversed(read)}

    def of(self, mutant: Mutant, tests: str) -> Outcome | None:
        """What still holds; None: it is to be tried."""
        known = self.latest(mutant)
        return known if known and (known.noticed_by or known.tests == tests) else None

    def latest(self, mutant: Mutant) -> Outcome | None:
        """Also of other tests."""
        known = self._known.get(mutant.name)
        return known if known and known.around == mutant.around else None

    def first(self, mutant: Mutant) -> Outcome | None:
        """By the tests of then."""
        return self._first.get((mutant.name, mutant.around))

    def keep(self, outcome: Outcome) -> None:
        """The latest counts."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        self._known[outcome.name] = outcome
        self._first.setdefault((outcome.name, outcome.around), outcome)
        with self._file.open("a") as file:
            file.write(json.dumps(asdict(outcome)) + "\n")


def digest_of(files: Sequence[str], words: Sequence[str]) -> str:
    """Of the contents of files, and of words."""
    found = hashlib.sha256("\0".join([*files, *words]).encode())
    for path in sorted(files):
        found.update(Path(path).read_bytes())
    return found.hexdigest()[:16]
