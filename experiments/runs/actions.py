"""What a part of a study does: commands, alone or side by side, copies and archives.

An action has two methods: `lines` says it as one would type it, `run` does it. All paths start at
the current directory.
"""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from glob import glob
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import yaml

from host.errors import Failure
from host.processes import die_with_parent

KEPT = "."
"""How the names of a sweep begin that archives leave out: of what it keeps for its own later runs,
such as trainings, and of locks.
"""


FILES = 0.1
"""Runs that take as long as it takes to move files."""

_SIZES = {"draw": 0.2, "baseline": 0.4, "choose": 0.6}
"""Runs that take as long as commands of `experiments.equal_tuning` which train nothing."""

_WORKERS = "workers="


class Action(Protocol):
    """One thing to be done."""

    @property
    def size(self) -> float:
        """What it may take, beside others of its part: so many runs of one worker, or seconds in a
        part whose commands all say how long they took.
        """
        ...

    def lines(self) -> list[str]:
        """The action as commands of a shell; a line that starts with # is a comment."""
        ...

    def run(self) -> None:
        """Do it. Raises `Failure` where that fails."""
        ...


@dataclass(frozen=True, kw_only=True)
class Command:
    """`python -m` with these arguments, the module first. `took_s`: how long it took before, where
    that is known.
    """

    arguments: tuple[str, ...]
    took_s: float | None = None

    @property
    def size(self) -> float:
        """The seconds that it took before, where they are known; else the combinations of all
        values that its words name, and of the settings in its file, each as large as its workers
        are many.
        """
        if self.took_s is not None:
            return self.took_s
        module, *words = self.arguments
        if module != "experiments.equal_tuning" or not words:
            return math.prod(map(_num_runs, words))
        if words[0] != "run":
            return _SIZES.get(words[0], 1.0)
        given = dict(pairwise(words))
        nets, seeds = (len(given.get(name, "").split(",")) for name in ("--nets", "--seeds"))
        settings = [text for word in words if word.endswith(".yaml") for text in _settings(word)]
        num_runs = sum(1 if " net=" in text else nets for text in settings) or nets
        workers = (_num_runs(word) for word in words if word.startswith(_WORKERS))
        return num_runs * seeds * math.prod(workers)

    def lines(self) -> list[str]:
        """The command as one line of a shell."""
        return [shlex.join(["python", "-m", *self.arguments])]

    def run(self) -> None:
        """Run the command and wait for its end; raises `Failure` if it fails."""
        SideBySide(commands=(self,), at_once=1).run()


def _num_runs(word: str) -> float:
    """How many values it names; of `workers=` their sum."""
    values = word.partition("=")[2].split(",")
    if word.startswith(_WORKERS) and all(value.isdecimal() for value in values):
        return float(sum(map(int, values)))
    return float(len(values))


def _settings(file: str) -> list[str]:
    """Those of all contestants, each as its words; none as long as there is no such file."""
    try:
        found = yaml.safe_load(Path(file).read_text())
        return [str(words) for own in found.values() for words in own]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError, AttributeError):
        return []  # the command will say what is wrong with it


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """Commands of which `at_once` run at a time. One that fails does not keep others from running.

    Ctrl-C and SIGTERM end all that run, and are waited for until they have ended. What commands
    print is lost where `is_quiet`, but for their errors.
    """

    commands: tuple[Command, ...]
    at_once: int
    is_quiet: bool = False

    @property
    def size(self) -> float:
        """Of all commands, as far as they do not run at once."""
        return sum(command.size for command in self.commands) / self.at_once

    def lines(self) -> list[str]:
        """A comment with the number at a time, then each command on its own line."""
        lines = [line for command in self.commands for line in command.lines()]
        return [f"# {self.at_once} at a time:", *lines]

    def run(self) -> None:
        """Run all commands; raises `Failure` at the end if any of them failed."""
        failed: list[str] = []
        waiting = list(self.commands)
        with _ended() as running:
            while waiting or running:
                while waiting and len(running) < self.at_once:
                    running.append(_start(waiting.pop(0).arguments, is_quiet=self.is_quiet))
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
                done = [child for child in running if child.poll() is not None]
                failed += [_said(child) for child in done if child.returncode]
                running[:] = [child for child in running if child not in done]
        if failed:
            raise Failure("; ".join(failed))


class _OfFiles:
    """What only moves files."""

    @property
    def size(self) -> float:
        """Less than a run."""
        return FILES


@dataclass(frozen=True, kw_only=True)
class Copy(_OfFiles):
    """Files and folders that match the pattern `source`, into the folder `to`, over what is there
    under the same names.
    """

    source: str
    to: str

    def lines(self) -> list[str]:
        """The copy as one line of a shell."""
        return [f"mkdir -p {self.to} && cp -r {self.source} {self.to}/"]

    def run(self) -> None:
        """Copy what matches; raises `Failure` if nothing does."""
        found = sorted(Path(name) for name in glob(self.source))
        if not found:
            raise Failure(f"there is no {self.source} to copy: run the part that makes it")
        Path(self.to).mkdir(parents=True, exist_ok=True)
        for path in found:
            target = Path(self.to, path.name)
            if path.is_dir():
                shutil.copytree(path, target, dirs_exist_ok=True)
            else:
                shutil.copy2(path, target)


@dataclass(frozen=True, kw_only=True)
class Pack(_OfFiles):
    """The `folders` in `root`, as one .tar.xz, without what a sweep keeps for its later runs."""

    folders: tuple[str, ...]
    root: str
    archive: str

    def lines(self) -> list[str]:
        """The `tar` command that packs the folders."""
        names = " ".join(self.folders)
        return [f"tar --exclude='{KEPT}*' -cJf {self.archive} -C {self.root} {names}"]

    def run(self) -> None:
        """Write the archive; raises `Failure` if a folder is missing."""
        missing = [name for name in self.folders if not Path(self.root, name).is_dir()]
        if missing:
            raise Failure(f"there is no {Path(self.root, missing[0])} to pack")
        unfinished = Path(f"{self.archive}.tmp")
        with tarfile.open(unfinished, "w:xz") as archive:
            for name in self.folders:
                archive.add(Path(self.root, name), arcname=name, filter=_without_kept)
        unfinished.replace(self.archive)


@dataclass(frozen=True, kw_only=True)
class Unpack(_OfFiles):
    """An archive's files, into the folder `to`."""

    archive: str
    to: str

    def lines(self) -> list[str]:
        """The `tar` command that unpacks the archive."""
        return [f"mkdir -p {self.to} && tar -xJf {self.archive} -C {self.to}"]

    def run(self) -> None:
        """Extract the archive; raises `Failure` if it cannot be read."""
        try:
            with tarfile.open(self.archive, "r:xz") as archive:
                archive.extractall(self.to, filter="data")
        except (OSError, tarfile.TarError) as error:
            raise Failure(f"{self.archive} cannot be unpacked: {error}") from error


def _start(arguments: Sequence[str], *, is_quiet: bool) -> subprocess.Popen[bytes]:
    """A child that the terminal's Ctrl-C does not reach, and that dies with this process."""
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if is_quiet else None,
        process_group=0,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )


@contextmanager
def _ended() -> Iterator[list[subprocess.Popen[bytes]]]:
    """A list of children that are ended, as by `kill`, when an exception comes."""
    running: list[subprocess.Popen[bytes]] = []
    try:
        yield running
    except BaseException:
        for child in running:
            child.terminate()
        for child in running:
            child.wait()
        raise


def _said(child: subprocess.Popen[bytes]) -> str:
    assert isinstance(child.args, list)
    code = child.returncode
    how = f"exit code {code}" if code > 0 else f"signal {-code}"
    return f"{shlex.join(['python', *map(str, child.args[1:])])} ended with {how}"


def _without_kept(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if Path(member.name).name.startswith(KEPT) else member
