"""Checkpoints of a run: what each process of it needs to go on bit for bit.

Where they are: `experiments.training.checkpoints.places`.
"""

import io
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import nn

from bagua_algos.checkpoint import check_whole, checked, is_portable
from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.stacking import Stacking
from experiments.plan.plan import MEASURED, Plan
from experiments.training.checkpoints.places import complete, complete_steps, folder, steps
from host.errors import UserError
from host.output import ANOTHER_RUN_DIR, writing
from host.words import counted

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
        """Write this process's file of `step`, and delete those that are out of date.

        Raises `UserError` for a state that `load` would not read, `DiskError` where it cannot be
        written; then earlier ones stay.
        """
        try:
            checked(state)
        except ValueError as error:
            raise UserError(f"no checkpoint can be written: {error}") from error
        file = self._file(step)
        with writing(file, ANOTHER_RUN_DIR):
            file.parent.parent.mkdir(exist_ok=True)  # not the run's folder, which may be deleted
            file.parent.mkdir(exist_ok=True)
            _write_whole(file, state)
        for old in steps(self.run)[:-KEPT]:
            self._file(old).unlink(missing_ok=True)
            if self.process == 0:
                self._delete_of_others(old)
            with suppress(OSError):  # another process's file is in it, or it is gone
                folder(self.run, old).rmdir()

    def load(self, step: int) -> dict[str, Any]:
        """Read this process's file of `step`. It may be a stranger's: no code in it runs.

        Raises `UserError` for what `save` has not written, from what is said of it, and for a file
        that is not there.
        """
        file = self._file(step)
        try:
            check_whole(file)
            return torch.load(file, weights_only=True)
        except OSError as error:
            raise _gone(self.run, f"{file} cannot be read ({error.strerror})") from error
        except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
            raise UserError(
                f"{file} is no checkpoint of relaxlab, or is damaged: take an older one"
            ) from error

    def latest(self) -> int:
        """The last step of which all processes have written their files.

        Raises `UserError` if there is none.
        """
        return complete_steps(self.run, self.num_processes)[0]

    def of_step(self, step: int) -> "Checkpoints":
        """Those that `step`, a complete one, was written by: as many processes, or another number,
        of which this process takes the file of one. Raises `UserError` where it is gone meanwhile.
        """
        numbers = complete(self.run, step)
        if self.num_processes in numbers:
            return self
        if not numbers:
            raise _gone(self.run, f"{folder(self.run, step)} is not complete any more")
        number = max(numbers)
        return Checkpoints(self.run, self.process % number, number)

    def to_resume(self, step: int | None) -> tuple["Checkpoints", int]:
        """Those of `step`, or of the last one, as `of_step` has them; and which step that is."""
        step = self.latest() if step is None else step
        return self.of_step(step), step

    def _delete_of_others(self, step: int) -> None:
        """What processes of another number have left, some of whom are no more."""
        with suppress(FileNotFoundError):
            for file in list(folder(self.run, step).iterdir()):
                if not file.stem.endswith(f"_of_{self.num_processes}"):
                    file.unlink(missing_ok=True)

    def _file(self, step: int) -> Path:
        return folder(self.run, step) / f"{self.process}_of_{self.num_processes}.pt"


def _gone(run: Path, what: str) -> UserError:
    return UserError(
        f"{what}: let the process end that runs {run}, if one does, since it deletes old "
        "checkpoints, and start again"
    )


class _Output(io.RawIOBase):
    """A file for `torch.save`, which answers an error of the disk by another one: this keeps the
    first, and goes on as if nothing had happened.
    """

    def __init__(self, file: Path) -> None:
        self._file = file.open("wb")
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """All of `data`."""
        if self.error is None:
            self._try(lambda: self._file.write(data))
        return memoryview(data).nbytes

    def close(self) -> None:
        """What is left to write is written."""
        self._try(self._file.close)
        super().close()

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            self.error = self.error or error


def _write_whole(file: Path, state: dict[str, Any]) -> None:
    """Write `state`, under another name until it is all there. Raises `OSError`."""
    unfinished = file.with_suffix(".tmp")
    with _Output(unfinished) as output:
        torch.save(state, cast(IO[bytes], output))
    if output.error is not None:
        unfinished.unlink(missing_ok=True)
        raise output.error
    unfinished.replace(file)


BATCHES = "batches"
"""In the state: the place in the epoch."""

STACKING = "stacking"
"""In the state of simulated workers: how they were computed."""


def go_on_alike(state: dict[str, Any], plan: Plan, model: nn.Module) -> None:
    """Compute stacked workers as those of a checkpoint's `state` were, which says so since that is
    not always the same way: then the bits are those of a run that was never stopped.

    Raises `UserError` where `plan` asks for another way.
    """
    if not isinstance(model, StackedModel) or STACKING not in state:
        return
    stacking = Stacking(**state[STACKING])
    if plan.cluster.stacking not in (MEASURED, stacking.way):
        raise UserError(
            f"cluster.stacking={plan.cluster.stacking} would change the bits of a run that began "
            f"by {stacking.way}: leave it out"
        )
    model.stacking = stacking


def check_portable(state: dict[str, Any], plan: Plan, num_saved: int) -> None:
    """Raise `UserError` where `num_saved` workers differ, or their algorithm's state has tensors,
    which are laid out for so many: no other number can go on. Nor can it where the checkpoint's
    `state`, of an earlier version, does not say which examples of the epoch are left.
    """
    agree = plan.algorithm.workers_agree
    if not is_portable(state["distributed"], workers_agree=agree):
        raise UserError(
            f"the checkpoint has the {'state' if agree else 'models'} of {plan.names['algo']} on "
            f"{counted(num_saved, 'worker')}, which {plan.workers} cannot go on with: "
            f"start {num_saved}"
        )
    if BATCHES not in state:
        raise UserError(
            "the checkpoint is of an earlier version, and does not say which examples of the epoch "
            f"are left: start {num_saved}"
        )
