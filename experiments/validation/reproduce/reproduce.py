"""Makes the files of a `Recipe` in an empty folder, and compares them with those that git keeps."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import chdir
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

from experiments.runs.actions import Pack, Unpack
from experiments.validation.reproduce import forked, provenance, quotes
from experiments.validation.reproduce.provenance import Provenance
from experiments.validation.reproduce.recipe import Recipe
from host.cores import usable_cores
from host.forks.side_by_side import side_by_side
from host.words import counted

INPUTS = (
    "results/map/profiles/",
    "results/partitions/profiles/",
    "results/reference/profiles/",
    "results/validation/time.jsonl",
)
"""Measurements, of which simulated runs and predictions are made."""

_SCRATCH = ("results/runs/", "results/reports/")
"""Where studies put what git does not keep."""

Files = Mapping[str, bytes]
"""The bytes of files, by their paths below the checkout."""


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What was made of the committed records, beside what is committed.

    Args:
        made: the files that were made.
        different: those of them that the checkout has otherwise, or not at all.
        records: of which commits the records are.
        problems: sentences on what else is wrong.
        without_records: why a file was not made, by its path.
    """

    made: Files
    different: Sequence[str]
    records: Sequence[Provenance]
    problems: Sequence[str]
    without_records: Mapping[str, str]

    def lines(self) -> Iterator[str]:
        """A line for each folder of files or of records, and for each file that was not made."""
        of = {folder.name: folder for folder in self.records}
        pages = {Path(folder).name: folder for folder in sorted(map(_folder, self.made))}
        for folder, paths in groupby(sorted(self.made, key=_folder), key=_folder):
            names = list(paths)
            wrong = [Path(path).name for path in names if path in self.different]
            num = counted(len(names), "file")
            found = f"{', '.join(wrong)} of {num} differ" if wrong else f"{num} the same"
            name = Path(folder).name
            records = of.pop(name, None) if pages[name] == folder else None
            yield f"{folder}: {found}" + ("" if records is None else f"; {records}")
        yield from (f"{name}, without a page: {records}" for name, records in of.items())
        yield from (f"{path}: not made, {why}" for path, why in self.without_records.items())


def reproduce(root: Path, recipe: Recipe) -> Reproduction:
    """Make all files of `recipe` again, and compare them with those of the checkout at `root`.

    Raises:
        Failure: an archive cannot be unpacked, or a command fails.
    """
    with TemporaryDirectory(prefix="relaxlab-reproduce-") as scratch:
        records = _unpack(root, recipe, Path(scratch))
        with chdir(scratch):
            forked.run(recipe.commands, at_once=usable_cores())
            for action in recipe.others:
                action.run()
        made = _read(Path(scratch))
    archives = [pack.archive for pack in recipe.archives]
    made[str(provenance.FILE)] = provenance.page(records, root, archives).encode()
    quoting, unmade = _quoting(root, made)
    made |= quoting
    return Reproduction(
        made=made,
        different=[path for path, text in made.items() if _committed(root / path) != text],
        records=records,
        problems=[*unmade, *_unexplained(root, made, recipe), *_impure(records)],
        without_records=recipe.without_records,
    )


def write(root: Path, reproduction: Reproduction) -> None:
    """Put the files that differ into the checkout at `root`."""
    for path in reproduction.different:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(reproduction.made[path])


def _folder(path: str) -> str:
    return str(Path(path).parent)


def _unpack(root: Path, recipe: Recipe, scratch: Path) -> list[Provenance]:
    """The records, where the commands look for them; archives side by side, the largest first."""
    for pack in recipe.archives:  # before: who unpacks beside others may find what was not there
        (scratch / pack.root).mkdir(parents=True, exist_ok=True)
    works = [partial(_unpack_one, pack, root, scratch) for pack in recipe.archives]
    archives = [root / pack.archive for pack in recipe.archives]
    sizes = [file.stat().st_size if file.is_file() else 0 for file in archives]
    unpacked = side_by_side(works, usable_cores(), lambda _: None, sizes)
    return [folder for folders in unpacked for folder in folders]


def _unpack_one(pack: Pack, root: Path, scratch: Path) -> list[Provenance]:
    Unpack(archive=str(root / pack.archive), to=str(scratch / pack.root)).run()
    return [provenance.provenance(scratch / pack.root / name) for name in pack.folders]


def _read(scratch: Path) -> dict[str, bytes]:
    """All that was made, by paths in `scratch`; not the records, which are many files."""
    made = []
    for folder, folders, names in os.walk(scratch):
        inside = Path(folder).relative_to(scratch)
        folders[:] = [name for name in folders if f"{inside / name}/" not in _SCRATCH]
        made += [inside / name for name in names]
    return {str(path): (scratch / path).read_bytes() for path in sorted(made)}


def _committed(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None


def _quoting(root: Path, made: Files) -> tuple[dict[str, bytes], list[str]]:
    """The pages that quote tables, and what they quote that is not made."""
    pages, problems = {}, []
    own = [*root.glob("README.md"), *sorted((root / "docs").glob("*.md"))]
    for file in [*own, *sorted((root / "results").rglob("README.md"))]:
        try:
            if text := quotes.requoted(file, made, root):
                pages[str(file.relative_to(root))] = text
        except ValueError as error:
            problems.append(str(error))
    return pages, problems


def _unexplained(root: Path, made: Files, recipe: Recipe) -> Iterator[str]:
    """Committed files that nothing makes; and what is said not to be made, but is, or is not."""
    paths = _kept(root)
    apart = (*INPUTS, *_SCRATCH, *(pack.archive for pack in recipe.archives))
    for path in sorted(paths - made.keys() - recipe.without_records.keys()):
        if not path.startswith(apart) and Path(path).name not in ("README.md", "reproduce.yaml"):
            yield f"{path}: nothing makes it, and results/reproduce.yaml does not say why"
    for path in sorted(recipe.without_records.keys() - (paths - made.keys())):
        yield f"{path}: results/reproduce.yaml says that it cannot be made, but it is, or is not"


def _kept(root: Path) -> set[str]:
    """The results and pictures that git has or is about to have; all where there is no git."""
    files = [*(root / "results").rglob("*"), *(root / "docs").glob("*.png")]
    paths = {str(file.relative_to(root)) for file in files if file.is_file()}
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return paths if listed.returncode else paths & set(listed.stdout.split("\0"))


def _impure(records: Sequence[Provenance]) -> Iterator[str]:
    for folder in records:
        if not folder.is_pure:
            yield f"{folder.name}: {folder}; a page is made of one commit and of a clean tree"
