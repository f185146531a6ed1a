"""Which modules are mutated, and which tests hold each: `map.yaml`. What changes nothing that could
be told: `equivalent.yaml`."""

from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.mutate.mutants import Mutant

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Group:
    """Modules that the same tests hold."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    """Arguments of pytest: files, and options such as -k."""
    wider: tuple[str, ...] = ()
    """Those of further tests, which only what those have not noticed meets."""

    def files(self) -> list[str]:
        """The test files among the arguments; of a folder, all of them."""
        found = []
        for path in (Path(t) for t in (*self.tests, *self.wider) if t.startswith("tests/")):
            found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
        return [str(path) for path in found]


def groups() -> list[Group]:
    """All of them, the most important first. A module may be a pattern."""
    read = yaml.safe_load((HERE / "map.yaml").read_text())
    return [
        Group(name, _files(entry["modules"]), tuple(entry["tests"]), tuple(entry.get("wider", ())))
        for name, entry in read.items()
    ]


def _files(patterns: list[str]) -> tuple[str, ...]:
    found = {str(path): None for pattern in patterns for path in sorted(Path().glob(pattern))}
    return tuple(found)


def equivalents() -> dict[tuple[str, str], str]:
    """(module, name of the mutant) -> why no test could notice it."""
    read = yaml.safe_load((HERE / "equivalent.yaml").read_text()) or {}
    return {
        (path, name): entry["reason"]
        for path, entries in read.items()
        for entry in entries
        for name in entry["mutants"]
    }


def is_equivalent(mutant: Mutant, known: dict[tuple[str, str], str]) -> bool:
    """Whether a reason is written down."""
    return (mutant.path, mutant.name) in known
