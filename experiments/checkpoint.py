"""Checkpoints of a run: what each process of it needs to go on bit for bit.

    RUN/checkpoints/step_00000040/0.pt, 1.pt, ...     one file a process

A file appears whole, by renaming, and a checkpoint is complete when all its files are there: no
worker waits for another, and whenever all are killed the last complete one stays.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.errors import UserError

KEPT = 2
"""Checkpoints of a run at a time: the newest may not be complete yet."""


@dataclass(frozen=True)
class Checkpoints:
    """Those of one run, as one of its `num_processes` processes sees them.

    Args:
        run: the run's folder.
        process: this process; with real workers, the worker.
        num_processes: of the run: its workers, or one that holds all simulated workers.
    """

    run: Path
    process: int
    num_processes: int

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Write this process's file of `step`, and delete those that are out of date."""
        file = self._file(step)
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished = file.with_suffix(".tmp")
        torch.save(state, unfinished)
        unfinished.replace(file)
        for old in self._steps()[:-KEPT]:
            self._file(old).unlink(missing_ok=True)
            with suppress(OSError):  # another process's file is in it, or it is gone
                self._folder(old).rmdir()

    def load(self, step: int) -> dict[str, Any]:
        """Read this process's file of `step`."""
        return torch.load(self._file(step), weights_only=False)  # an algorithm's state is a class

    def latest(self) -> int:
        """The last step of which all processes have written their files.

        Raises `UserError` if there is none.
        """
        names = {f"{process}.pt" for process in range(self.num_processes)}
        for step in reversed(self._steps()):
            if names <= {file.name for file in self._folder(step).iterdir()}:
                return step
        raise UserError(
            f"{self.run} holds no complete checkpoint of {self.num_processes} processes: "
            "run it with checkpoint_every=... to write some"
        )

    def _steps(self) -> list[int]:
        folders = (self.run / "checkpoints").glob("step_*")
        return sorted(int(folder.name.removeprefix("step_")) for folder in folders)

    def _folder(self, step: int) -> Path:
        return self.run / "checkpoints" / f"step_{step:08d}"

    def _file(self, step: int) -> Path:
        return self._folder(step) / f"{self.process}.pt"
