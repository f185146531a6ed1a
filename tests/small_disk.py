"""A disk that is soon full, for one process and its children: `python -m tests.small_disk FOLDER
BYTES MODULE ARGUMENT ...` runs a command with such a one at FOLDER, and leaves all others' as is.
"""

import ctypes
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from host import commands

_NEW_MOUNTS, _PRIVATE, _RECURSIVE, _READ_ONLY, _REMOUNT = 0x20000, 1 << 18, 1 << 14, 1, 32
_LIBC = ctypes.CDLL(None, use_errno=True)

FILLING = "filling"
"""The file by which `fill` leaves no room."""


def skip_without_mounts() -> None:
    """Skip where no small disk can be made."""
    if os.getuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("only root mounts a small disk")


def mount(folder: Path, num_bytes: int) -> None:
    """Give this process an empty disk of that size at `folder`; it is gone with the process."""
    _check(_LIBC.unshare(_NEW_MOUNTS))
    _check(_LIBC.mount(b"none", b"/", None, _PRIVATE | _RECURSIVE, None))
    options = f"size={num_bytes}".encode()
    _check(_LIBC.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, options))


def unmount(folder: Path) -> None:
    """Take away again what `mount` has made."""
    _check(_LIBC.umount(os.fsencode(folder)))


def see_own_processes() -> None:
    """Have /proc, after `mount`, show the processes of this PID namespace alone."""
    _check(_LIBC.mount(b"proc", b"/proc", b"proc", 0, None))


def make_read_only(folder: Path) -> None:
    """What `mount` has made can only be read from now on."""
    _check(_LIBC.mount(b"none", os.fsencode(folder), None, _REMOUNT | _READ_ONLY, None))


def fill(folder: Path) -> None:
    """Leave no room on the disk of `folder`."""
    with (folder / FILLING).open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def _check(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def main() -> None:
    """Run the command, then copy what it leaves beside FOLDER: nobody else sees this disk."""
    folder, num_bytes, module, *arguments = sys.argv[1:]
    mount(Path(folder), int(num_bytes))
    sys.argv = [module, *arguments]
    try:
        commands.run(importlib.import_module(module).main)
    finally:
        shutil.copytree(folder, f"{folder}.copy")


if __name__ == "__main__":
    main()
