"""A guest kernel with netem, for hosts whose own lacks it: User-Mode Linux, an ordinary process.

    python -m netsim.links.guest netsim probe net=lossy net.backend=netem

The guest sees the files of the host, read-only, and runs the same Python on them. It takes three
seconds to boot, has one slow processor and shapes up to about 100 Mbit/s: a cross-check of netem
and of the switch, and no place to train. Debian's packages: user-mode-linux and busybox-static.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from host import commands

KERNEL = "linux.uml"
_MODULES = ("bridge", "veth", "sch_tbf", "sch_netem")
_MODULES_FOLDER = Path("/usr/lib/uml/modules")
_MEMORY_MB = 1024
_BOOT_LIMIT_S = 30
_TAIL_CHARACTERS = 2000
_REGISTERS_LOST = "ptrace set fp regs failed"
"""Said by a guest kernel that saves fewer bytes of registers than the processor has."""

_INIT = """\
#!{busybox} sh
# By its path until /proc is mounted: before, busybox would look itself up in the host's.
{busybox} mount -t proc proc /proc
{busybox} mount -t sysfs sys /sys
{busybox} mount -t hostfs -o {folder} none {folder}  # all else is read-only
for module in {modules}; do
    {busybox} insmod "$module"
done
cd {project}
export HOME={folder} TMPDIR={folder} PATH=/usr/sbin:/usr/bin:/sbin:/bin
{busybox} timeout {limit_s} {command} \\
    </dev/null >{folder}/stdout 2>{folder}/stderr
echo $? >{folder}/code
{busybox} poweroff -f
"""


class GuestError(RuntimeError):
    """There is no guest, or it failed; the message is one sentence that says what to do."""


class ProcessorError(GuestError):
    """The guest kernel does not run on this processor."""


def why_not() -> str | None:
    """What this host lacks to run a guest, and how to get it; None if it lacks nothing."""
    for program, package in ((KERNEL, "user-mode-linux"), ("busybox", "busybox-static")):
        if shutil.which(program) is None:
            return f"{program} is not installed: on Debian, apt-get install {package}"
    return None


def run_module(module: str, arguments: list[str], *, limit_s: float) -> str:
    """What `python -m module arguments` prints, run in a guest that is gone when this returns.

    Args:
        module: to run as `__main__`, in this project's folder.
        arguments: its command line.
        limit_s: of the module; the guest is killed soon after.

    Raises:
        ProcessorError: if the guest kernel does not run on this processor.
        GuestError: if the host has no guest kernel, or the module fails or takes too long; with
            the end of what it printed.
    """
    if reason := why_not():
        raise GuestError(f"No guest can be started as {reason}.")
    with tempfile.TemporaryDirectory(prefix="netsim-guest-") as name:
        folder = Path(name)
        init = folder / "init"
        init.write_text(_init(folder, [sys.executable, "-m", module, *arguments], limit_s))
        init.chmod(0o755)
        console = _boot(folder, limit_s + _BOOT_LIMIT_S)
        code = _read(folder / "code").strip()
        if _REGISTERS_LOST in console:
            raise ProcessorError(
                "The guest kernel does not run on this processor, which has more registers than "
                "User-Mode Linux saves, such as those of AMX: take a machine without them."
            )
        if not code:
            raise GuestError(f"The guest did not get as far as {module}; it said: {_end(console)}")
        if code != "0":
            complaint = _end(_read(folder / "stderr"))
            raise GuestError(f"{module} failed in the guest with exit code {code}: {complaint}")
        return _read(folder / "stdout")


def _init(folder: Path, command: list[str], limit_s: float) -> str:
    busybox = shutil.which("busybox")
    assert busybox is not None
    return _INIT.format(
        busybox=busybox,
        folder=shlex.quote(str(folder)),
        modules=" ".join(_module_files()),
        project=shlex.quote(str(Path(__file__).parents[2])),
        limit_s=round(limit_s),
        command=shlex.join(command),
    )


def _boot(folder: Path, limit_s: float) -> str:
    """Run the guest's init until it powers off; returns what its console said."""
    command = [KERNEL, f"mem={_MEMORY_MB}M", "rootfstype=hostfs", "rootflags=/", "ro", "quiet"]
    command += [f"init={folder}/init", f"uml_dir={folder}", "con=null", "con0=fd:0,fd:1"]
    console = folder / "console"
    with (
        console.open("wb") as output,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a group of its own, to be killed as one
            env=os.environ | {"TMPDIR": str(folder)},
        ) as guest,
    ):
        with suppress(PermissionError):  # it shapes packets, and late is wrong: as the switch does
            os.setpriority(os.PRIO_PGRP, guest.pid, -20)
        try:
            guest.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise GuestError(
                f"The guest did not end within {limit_s:.0f} s; it said: {_end(_read(console))}"
            ) from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(guest.pid, signal.SIGKILL)
    return _read(console)


def _module_files() -> Iterator[str]:
    """The guest's kernel modules, each after those that it depends on."""
    version = subprocess.run([KERNEL, "--version"], capture_output=True, text=True, check=True)
    folder = _MODULES_FOLDER / version.stdout.strip()
    needs = {}
    for line in (folder / "modules.dep").read_text().splitlines():
        file, _, others = line.partition(":")
        needs[file.rpartition("/")[2]] = [file, *others.split()]
    files = [file for name in _MODULES for file in reversed(needs[f"{name}.ko"])]
    return (str(folder / file) for file in dict.fromkeys(files))


def _read(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""


def _end(text: str) -> str:
    return text[-_TAIL_CHARACTERS:].strip()


def main() -> int:
    """The command line; returns the exit code."""
    try:
        print(run_module(sys.argv[1], sys.argv[2:], limit_s=300), end="")
    except GuestError as error:
        print(f"netsim: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    commands.run(main)
