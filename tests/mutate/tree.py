"""A copy of the working directory in which a module is mutated: the processes that tests start find
the mutant, too, and nothing is changed where somebody works."""

import fcntl
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self


class Tree:
    """A copy at `folder`, of one user at a time. What a killed one has left there is mended."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._lock = (folder / ".lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.folder = folder.resolve()
        # Python looks at a file's size and second to see whether its compiled one is old.
        self._seconds = itertools.count(int(time.time()) - 2**29)
        files = _files()
        for path in self._left_over(files):
            path.unlink()
        for path in files:
            if not _are_equal(path, self.folder / path):
                self._copy(path)
        _link(Path(".venv"), self.folder / ".venv")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    @contextmanager
    def with_text(self, path: str, text: str) -> Iterator[None]:
        """For a moment the file holds `text`."""
        (self.folder / path).write_text(text)
        self._touch(path)
        try:
            yield
        finally:
            self._copy(path)

    def _left_over(self, files: list[str]) -> Iterator[Path]:
        """Of a tree of before."""
        kept = {self.folder / path for path in files} | {self.folder / ".lock"}
        for folder, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if name not in (".venv", "__pycache__", "build")]
            paths = [Path(folder, name) for name in names]
            yield from (path for path in paths if path not in kept)

    def _copy(self, path: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, self.folder / path)
        self._touch(path)

    def _touch(self, path: str) -> None:
        second = next(self._seconds)
        os.utime(self.folder / path, (second, second))


def _files() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [path for path in listed.split("\0") if Path(path).is_file()]


def _are_equal(path: str, other: Path) -> bool:
    return other.is_file() and Path(path).read_bytes() == other.read_bytes()


def _link(path: Path, at: Path) -> None:
    if path.exists() and not at.exists():
        at.symlink_to(path.resolve())
