"""Of which commits the committed records are, and whether of a clean tree: a page of Markdown.

    results/reference/provenance.md

A folder of records is *pure* if all are of one commit and of a clean tree.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.runs.load import load_environment
from host import markdown
from host.words import counted

FILE = Path("results/reference/provenance.md")
_DIGITS = 9
_UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """How many records of a folder are of which commit: clean ones and dirty ones."""

    name: str
    clean: Counter[str]
    dirty: Counter[str]

    @property
    def is_pure(self) -> bool:
        """Whether all are of one commit, which is known, and of a clean tree."""
        return not self.dirty and len(self.clean) == 1 and _UNKNOWN not in self.clean

    @property
    def commits(self) -> list[str]:
        """The most frequent first."""
        return [commit for commit, _ in (self.clean + self.dirty).most_common()]

    def __str__(self) -> str:
        """Such as "342 records, all of a dirty tree, of 1 commit"."""
        num, dirty = self.clean.total() + self.dirty.total(), self.dirty.total()
        said = {0: "none", num: "all"}.get(dirty, f"{dirty}")
        of = counted(len(self.commits), "commit")
        return f"{counted(num, 'record')}, {said} of a dirty tree, of {of}"


def provenance(folder: Path) -> Provenance:
    """Of all records at or below `folder`."""
    clean, dirty = Counter[str](), Counter[str]()
    for file in sorted(folder.rglob("summary.json")):
        commit, is_dirty = _commit(file.parent)
        (dirty if is_dirty else clean)[commit] += 1
    return Provenance(name=folder.name, clean=clean, dirty=dirty)


def page(folders: Sequence[Provenance], root: Path, archives: Iterable[str]) -> str:
    """What git keeps of it: a row a folder, and the archives, by their paths below `root`, with
    their SHA-256.
    """
    rows = [
        [
            folder.name,
            f"{folder.clean.total() + folder.dirty.total():,}",
            f"{folder.dirty.total():,}",
            ", ".join(
                f"{commit} ({folder.clean[commit] + folder.dirty[commit]:,})"
                for commit in folder.commits
            ),
        ]
        for folder in sorted(folders, key=lambda folder: folder.name)
    ]
    digests = [[path, hashlib.sha256((root / path).read_bytes()).hexdigest()] for path in archives]
    headers = ["records", "number", "of a dirty tree", "commits (records)"]
    return "\n".join(
        [
            "# Of which commits the records are",
            "",
            "`python -m experiments.reproduce --write` made this page from the records. A dirty "
            "tree has changes that no commit holds: such a record cannot be made again for sure.",
            "",
            markdown.table(headers, rows, "lrrl"),
            "",
            markdown.table(["archive", "SHA-256"], digests),
            "",
        ]
    )


def _commit(run: Path) -> tuple[str, bool]:
    """The commit, and whether its tree was dirty; a record that does not say is of none."""
    facts = load_environment(run)
    return str(facts.get("git_commit") or _UNKNOWN)[:_DIGITS], bool(facts.get("git_dirty", True))
