"""One case from its beginning to its row in the table."""

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests import forks
from tests.chaos import clock, judge
from tests.chaos.case import Case
from tests.chaos.programs import (
    RESUMED,
    Words,
    continuation,
    digests,
    preparation,
    undisturbed,
    words,
)
from tests.chaos.room import Ended, run_in_room
from tests.chaos.strikes import disk_bytes, striker


def import_all() -> None:
    """What the commands need, before the first fork."""
    forks.import_all()


def try_case(case: Case, scratch: Path) -> int:
    """Do to the command what the case says, judge it, go on with it, judge that; the row is written
    to `scratch`, where all cases share what was done for them without any disturbance.
    """
    folder = scratch / f"case_{case.seed}"
    work = folder / "work"
    folder.mkdir()
    clock.follow(folder / "clock")
    if (first := preparation(case)) is not None:
        shutil.copytree(_calm(first, scratch) / "work", work)
    ended = run_in_room(
        folder,
        words(case),
        striker(case, work),
        disk_bytes=disk_bytes(case),
        limit_s=judge.limit_s(case),
    )
    found = judge.faults(case, ended, work)
    outcome, again = _outcome(case, ended), None
    if ended.code is not None and (ended.code != 0 or case.kind != "report"):
        after, again = _go_on(case, ended, folder, scratch)
        found += after
    row = {
        **{"seed": case.seed, "case": case.told(), "kind": case.kind, "strike": case.strike},
        **{"done": ended.done, "code": ended.code, "took_s": round(ended.took_s, 1)},
        "until_the_end_s": None if ended.since_s is None else round(ended.since_s, 1),
        **{"outcome": outcome, "again": again, "faults": found},
        "printed": ended.output + ended.errors,
    }
    (scratch / f"{case.seed}.json").write_text(json.dumps(row))
    shutil.rmtree(folder)
    return 0


UNPROVED = "refused: the host was too busy for its network"


def _outcome(case: Case, ended: Ended) -> str:
    if ended.code is None:
        return "hung"
    if judge.is_unproved(ended):
        return UNPROVED
    struck = "" if ended.done else ", before anything was done"
    return {0: "done"}.get(ended.code, "ended") + struck


def _go_on(case: Case, ended: Ended, folder: Path, scratch: Path) -> tuple[list[str], str]:
    """Give the command that goes on; what is wrong then, and in a word what became of it."""
    work = folder / "work"
    if ended.code != 0:
        if (command := continuation(case, work)) is None:
            return [], "nothing to go on from"
        more = run_in_room(
            folder, command, lambda pid: None, disk_bytes=None, limit_s=judge.limit_s(case)
        )
        found = [f"afterwards left: {what}" for what in more.left]
        if judge.is_unproved(more):
            return found, UNPROVED
        if more.code != 0:
            said = (more.output + more.errors).strip().splitlines()[-3:]
            return [*found, f"afterwards exit code {more.code}: {' | '.join(said)}"], "failed"
        if found:
            return found, "done"
    if (calm := undisturbed(case)) is None:
        return [], "done, without a promise of bits"
    done = work / RESUMED if (work / RESUMED).exists() else work
    expected, got = digests(case, _calm(calm, scratch) / "work"), digests(case, done)
    if different := [name for name in expected if got.get(name) != expected[name]]:
        return [f"other values than undisturbed: {', '.join(different)}"], "other values"
    return [], "the same bits"


def _calm(command: Words, scratch: Path) -> Path:
    """The folder of a room in which `command` has run undisturbed, once for all cases."""
    name = f"calm_{abs(hash(command)):x}"
    with _held(scratch / f"{name}.lock"):
        folder = scratch / name
        if not folder.exists():
            ended = run_in_room(
                scratch / f"{name}.part", command, lambda pid: None, disk_bytes=None, limit_s=300
            )
            if ended.code != 0 or ended.left:
                raise RuntimeError(f"undisturbed: {command}: {ended}")
            (scratch / f"{name}.part").rename(folder)
        return folder


@contextmanager
def _held(file: Path) -> Iterator[None]:
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
