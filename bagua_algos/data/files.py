"""Files and folders: bytes that stand for what is in them."""

import hashlib
import os
import pickle
from contextlib import suppress
from functools import cache
from pathlib import Path

_MOST_FILES = 2_000_000
"""Of a folder: some ten seconds' reading."""


def content(path: str) -> bytes:
    """16 bytes that stand for all that a file holds. Raises `OSError` where it cannot be read."""
    return _content(path, _size_and_time(path))


@cache
def _content(path: str, _: tuple[int, ...]) -> bytes:
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=16).digest()


def folder(path: str) -> bytes:
    """Names, sizes and times of change of all files in and below a folder, in linked ones too; of
    folders that cannot be read, their own.

    Raises:
        PicklingError: they are too many.
    """
    lines, known, num_files = hashlib.blake2b(digest_size=16), set(), 0
    unread: list[str] = []
    walk = os.walk(path, followlinks=True, onerror=lambda error: unread.append(error.filename))
    for root, folders, files in walk:
        try:
            own = os.stat(root)
        except OSError:  # it has just gone
            unread.append(root)
            folders.clear()
            continue
        if (own.st_dev, own.st_ino) in known:  # a link to where it has been
            folders.clear()
            continue
        known.add((own.st_dev, own.st_ino))
        folders.sort()
        num_files += len(files)
        if num_files > _MOST_FILES:
            raise pickle.PicklingError(f"{path!r} has more than {_MOST_FILES:,} files")
        for name in sorted(files):
            file = os.path.join(root, name)
            lines.update(os.fsencode(f"{os.path.relpath(file, path)!r} {_size_and_time(file)}"))
    for root in sorted(unread):
        state = _size_and_time(root)
        lines.update(os.fsencode(f"{os.path.relpath(root, path)!r} unreadable {state}"))
    return lines.digest()


def _size_and_time(path: str) -> tuple[int, ...]:
    """Empty where there is nothing, such as behind a link to nowhere, or it cannot be known."""
    with suppress(OSError):
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns
    return ()
