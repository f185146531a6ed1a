"""Builds the plugin's library where it is missing: kept by the content of its sources."""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

import platformdirs

from host.errors import UserError

FOLDER = Path(__file__).parent
NAME = "libnccl-net-bagua.so"
_COMPILERS = ("g++", "clang++", "c++")
_LIMIT_S = 600


def build(target: str = "all", product: str = NAME) -> Path:
    """The path of the library, which is built now unless it is there for these sources.

    Args:
        target: of bagua_net/Makefile.
        product: the file that the target makes, in the folder of its build.

    Raises:
        UserError: without a compiler or make, or if they do not make the library.
    """
    compiler = _compiler()
    folder = platformdirs.user_cache_path("relaxlab") / "bagua_net" / _digest(compiler)
    path = folder / ("" if target == "all" else target) / product
    if path.is_file():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.is_file():
                _make(target, path, folder, compiler)
    except OSError as error:
        raise UserError(
            f"The plugin's library cannot be built in {folder} ({error.strerror}): set "
            "XDG_CACHE_HOME to a folder that can be written to."
        ) from None
    return path


def _compiler() -> str:
    chosen = os.environ.get("CXX")
    found = (
        shutil.which(chosen) if chosen else next(filter(None, map(shutil.which, _COMPILERS)), None)
    )
    if found is None or shutil.which("make") is None:
        raise UserError(
            "The plugin's library is built by make and a C++17 compiler, and one is missing here: "
            "install both (on Debian: apt-get install make g++), or name the compiler in CXX."
        )
    return found


def _digest(compiler: str) -> str:
    # One home may serve hosts of several kinds, whose compilers have one path.
    host = f"{compiler} {platform.machine()} {platform.libc_ver()}"
    digest = hashlib.sha256(host.encode())
    for file in (
        FOLDER / "Makefile",
        *sorted(FOLDER.glob("nccl/*.h")),
        *sorted(FOLDER.glob("src/*")),
        *sorted(FOLDER.glob("checks/*")),
    ):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def _make(target: str, path: Path, folder: Path, compiler: str) -> None:
    command = ["make", "-C", str(FOLDER), f"-j{os.cpu_count() or 1}", target]
    command += [f"OUT={folder}", f"CXX={compiler}"]
    try:
        finished = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"The plugin's library was not built within {_LIMIT_S} s: call {' '.join(command)} "
            "on a host that is less busy."
        ) from None
    if finished.returncode != 0 or not path.is_file():
        last = (finished.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UserError(f"The plugin's library was not built; {' '.join(command)} ended so: {last}")
