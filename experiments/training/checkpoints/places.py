"""Where the checkpoints of a run are, and which are complete.

    RUN/checkpoints/step_00000040/0_of_2.pt, 1_of_2.pt     one file a process

A file appears whole, by renaming, and a checkpoint is complete when all its files are there: no
worker waits for another, and whenever all are killed the last complete one stays.

Found without torch, which takes seconds to import.
"""

import re
from contextlib import suppress
from pathlib import Path

from host.errors import UserError


def complete_steps(run: Path, num_processes: int) -> list[int]:
    """Those of which all of `num_processes` have written their files, the last one first. Raises
    `UserError` if there is none.
    """
    found = {step: complete(run, step) for step in reversed(steps(run))}
    if own := [step for step, numbers in found.items() if num_processes in numbers]:
        return own
    others = sorted(set().union(*found.values()))
    if others:
        raise UserError(
            f"{run} holds checkpoints of {', '.join(map(str, others))} processes, and none of "
            f"{num_processes}: start as many"
        )
    raise UserError(
        f"{run} holds no complete checkpoint of {num_processes} processes: "
        "run it with checkpoint_every=... to write some"
    )


def newest(run: Path) -> int | None:
    """The last step of which all processes, however many, have written their files; None: there is
    none.
    """
    return next((step for step in reversed(steps(run)) if complete(run, step)), None)


def steps(run: Path) -> list[int]:
    """Those of which there is a folder by `folder`; a user may keep copies beside them."""
    names = [folder.name for folder in (run / "checkpoints").glob("step_*")]
    found = [int(number) for name in names for number in re.findall(r"^step_(\d{8,})$", name)]
    return sorted(found)


def folder(run: Path, step: int) -> Path:
    """That of a checkpoint."""
    return run / "checkpoints" / f"step_{step:08d}"


def complete(run: Path, step: int) -> set[int]:
    """The numbers of processes of which all have written their files of `step`; none where the
    folder is gone: a run that goes on removes old ones. A stranger's pipe is no file.
    """
    names: set[str] = set()
    with suppress(FileNotFoundError):
        names = {file.name for file in folder(run, step).iterdir() if file.is_file()}
    numbers = {int(number) for name in names for number in re.findall(r"_of_(\d+)\.pt$", name)}
    return {n for n in numbers if names >= {f"{process}_of_{n}.pt" for process in range(n)}}
