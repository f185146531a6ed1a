"""What a command writes where it was told to: tried before it works, and told in one sentence."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from host.errors import UserError


@contextmanager
def writing(path: Path, option: str = "--out") -> Iterator[None]:
    """Within, what cannot be written is a `UserError` that says which option to change."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}): choose {option}") from error


def check_folder(path: Path, option: str = "--out") -> None:
    """Make the folder, if it is not there. Raises `UserError` where no file can be made in it."""
    with writing(path, option):
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
