"""Which runs of a study are done, by what their folders hold.

A run is known by its resolved configuration, the text of its config.yaml. So a sweep that was
stopped is continued by the same command:

    done           completed, or diverged, which is a result: left out
    running        a process here or elsewhere holds its folder: left to it
    failed         listed with its reason; run again on request
    interrupted    killed, or stopped from outside: run again
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from experiments.plan.identity import identity
from experiments.runs.folder_lock import HeldError, hold, is_held
from experiments.runs.records import FILES
from experiments.runs.summary import NOT_ENDED, UNREADABLE, Summary, is_unended, read_summary
from host.errors import Failure
from host.strangers.regular import read_text
from host.words import counted

AGAIN = "hydra.sweeper.retry_failed=true"
"""How to ask for failed runs to be run again."""


class RunsFailed(Failure):
    """Not all runs of a sweep are done; its message says what to do."""


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """What came of one run, as a launcher hands it back: the status of its record, "refused", or
    "held" by another process; and why.
    """

    status: str
    reason: str | None = None


class Standing(Enum):
    """How far a run has come; the furthest first."""

    DONE = "done"
    RUNNING = "running elsewhere"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is known of a run by its folder; `status` and `reason` are its summary's."""

    folder: Path
    standing: Standing
    status: str
    reason: str | None


def read_record(folder: Path, *, is_held: bool) -> Record | None:
    """That of the run in `folder`, which a process may hold; None where there is none."""
    if not any((folder / name).exists() for name in FILES):
        return None
    summary = Summary(status="failed", reason=NOT_ENDED)
    with suppress(*UNREADABLE):
        summary = read_summary(folder)
    return Record(
        folder=folder,
        standing=_standing(summary, is_held=is_held),
        status=str(summary.status),
        reason=summary.reason,
    )


def _standing(summary: Summary, *, is_held: bool) -> Standing:
    if summary.status != "failed":
        return Standing.DONE
    if not is_unended(summary.status, summary.reason):
        return Standing.FAILED
    return Standing.RUNNING if is_held else Standing.INTERRUPTED


def find_records(root: Path) -> dict[str, Record]:
    """Those of all runs at or below `root`, by the identity of their configurations; of several
    runs of one, the one that came furthest.
    """
    found: dict[str, Record] = {}
    for path, folders, files in os.walk(root):
        if "config.yaml" not in files:
            continue
        folders.clear()
        folder = Path(path)
        held = is_held(folder)  # asked first: a run that ends meanwhile is seen to have ended
        try:
            key = identity(read_text(folder / "config.yaml"))
        except (OSError, UnicodeDecodeError):  # a stranger's, or gone by now
            continue
        record = read_record(folder, is_held=held)
        if record is not None and (key not in found or _is_further(record, found[key])):
            found[key] = record
    return found


def clear(folder: Path) -> None:
    """Make room for another try. If this is killed, what it leaves reads as interrupted."""
    (folder / "summary.json").unlink(missing_ok=True)
    shutil.rmtree(folder)


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """One run of a study: the overrides that make it, and what its configuration says of it."""

    overrides: tuple[str, ...]
    identity: str
    needs_host: bool
    """Whether its times are measured, so that nothing else may run beside it."""


class Sweep:
    """The runs of a study that one command asks for, recorded below `root`. Says how far they have
    come.
    """

    def __init__(self, root: Path, runs: Iterable[StudyRun]) -> None:
        self._root = root
        self._runs = {run.identity: run for run in runs}

    def begin(self, *, retry_failed: bool) -> list[StudyRun]:
        """The runs to be run, with room made for them."""
        again = {Standing.INTERRUPTED, *([Standing.FAILED] if retry_failed else [])}
        records = self._records()
        for key, record in list(records.items()):
            if record.standing in again:
                with suppress(HeldError), hold(record.folder):  # else it is being run by now
                    clear(record.folder)
                    del records[key]
        todo = [run for key, run in self._runs.items() if key not in records]
        self._tell(records)
        return todo

    def end(self, trouble: str = "", *, num_refused: int = 0) -> None:
        """Say what came of them.

        Args:
            trouble: why the launcher ended before them, if it did.
            num_refused: how many were not begun, because of what they ask for.

        Raises:
            RunsFailed: not all of them are done.
        """
        records = {k: r for k, r in self._records().items() if r.standing != Standing.INTERRUPTED}
        self._tell(records)
        num_failed = sum(record.standing is Standing.FAILED for record in records.values())
        num_left = len(self._runs) - len(records) + num_failed
        if trouble or num_left:
            raise RunsFailed(trouble or _what_is_left(num_left, num_refused))

    def _records(self) -> dict[str, Record]:
        found = find_records(self._root)
        return {key: found[key] for key in self._runs if key in found}

    def _tell(self, records: dict[str, Record]) -> None:
        counts = Counter(record.standing for record in records.values())
        parts = [
            f"{counts[standing]} {standing.value}" for standing in Standing if counts[standing]
        ]
        num_open = len(self._runs) - len(records)
        parts += [f"{num_open} to do"] if num_open else []
        num_runs = counted(len(self._runs), "run")
        print(f"{_short(self._root)}: {num_runs}, {', '.join(parts)}", flush=True)
        for record in records.values():
            if record.standing is Standing.FAILED:
                print(f"failed: {_short(record.folder)}: {record.reason}")
        if counts[Standing.FAILED]:
            print(f"{AGAIN} runs what failed again", flush=True)


def _is_further(one: Record, other: Record) -> bool:
    order = list(Standing)
    return order.index(one.standing) < order.index(other.standing)


def _what_is_left(number: int, num_refused: int) -> str:
    """What to do about runs that are not done, of which some were refused."""
    others = "the same command goes on with"
    if not num_refused:
        return f"not all runs are done: {others} them"
    was, needs = ("was", "needs") if num_refused == 1 else ("were", "need")
    refused = f"{counted(num_refused, 'run')} {was} refused and {needs} other words"
    rest = "" if number <= num_refused else f", {others} the others"
    return f"not all runs are done: {refused}{rest}"


def _short(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
