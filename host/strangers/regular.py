"""Files of a folder that may be a stranger's: regular ones alone are read. A pipe would be waited
for without an end, and a device has none.
"""

from pathlib import Path


def check_regular(file: Path) -> None:
    """Raise `OSError` where it is no regular file, or there is none."""
    file.stat()  # says best what is missing
    if not file.is_file():
        raise OSError("it is no regular file")


def read_text(file: Path, errors: str | None = None) -> str:
    """The text of a regular file. Raises `OSError` for any other, and as `Path.read_text`."""
    check_regular(file)
    return file.read_text(errors=errors)
