"""What a command writes where it was told to: tried before it works, and told in one sentence."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from host.errors import DiskError, UserError

ANOTHER_RUN_DIR = "another hydra.run.dir=..."
"""What to choose where a run's folder cannot be written."""

_FULL = {
    errno.ENOSPC: "make room there, or ",
    errno.EDQUOT: "delete files of yours there, or ",
}
_CURES = _FULL | {
    errno.EROFS: "have it mounted for writing, or ",
    errno.EMFILE: "allow more open files by ulimit -n, or ",
    errno.ENFILE: "end programs that have many files open, or ",
}
"""By the error of the system: what helps beside another place. Only the machine makes these."""

_OTHERS = {
    errno.ENOENT: "leave its folder where it is, or ",
    errno.EACCES: "allow yourself to write there, or ",
}


@contextmanager
def writing(path: Path, option: str = "--out") -> Iterator[None]:
    """Within, what cannot be written is a `DiskError` that says which option to change."""
    try:
        yield
    except OSError as error:
        cure = (_CURES | _OTHERS).get(error.errno or 0, "")
        raise DiskError(
            f"{path} cannot be written ({reason(error)}): {cure}choose {option}"
        ) from error


def as_text(path: Path) -> str:
    """A path as terminals, tables and pages can say it: bytes that are not UTF-8 as "\\xfe"."""
    return str(path).encode(errors="surrogateescape").decode(errors="backslashreplace")


def check_text(path: Path) -> None:
    """Raise `UserError` where a path is not UTF-8."""
    if (told := as_text(path)) != str(path):
        raise UserError(f"{told} is not UTF-8, as what tells of it is: give it another name.")


def check_folder(path: Path, option: str = "--out") -> None:
    """Make the folder, if it is not there. Raises `DiskError` where no file can be made in it, and
    `UserError` where its path is not UTF-8.
    """
    check_text(path)
    with writing(path, option):
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass


def is_full(error: OSError) -> bool:
    """Whether it says that nothing more fits."""
    return error.errno in _FULL


def limit_reached(error: OSError) -> str | None:
    """A sentence on an error that nothing but the machine's limits can cause; None for others."""
    if error.errno not in _CURES:
        return None
    what = error.filename or "what this command prints or writes"
    return f"{what} cannot be written ({reason(error)}): {_CURES[error.errno]}choose another place"


def reason(error: OSError) -> str:
    """Such as "No space left on device"; whatever library has raised it, in the system's words."""
    return os.strerror(error.errno) if error.errno else str(error)
