"""What the simulated runs of a study measure: each thing once, and with the host for itself.

The seconds of a worker's own work are one file for all seeds, and the way to compute workers is one
for all runs of a model and task. So runs differ by nothing that was measured twice, and by nothing
that another run beside took of the host's time.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bagua_algos.worker_axis.stacking import WAYS, Way
from experiments.plan.identity import identity
from experiments.plan.plan import MEASURED, Plan
from experiments.simulated.profile import Profile
from experiments.simulated.stacking import StackingChoice, choose_stacking
from experiments.tasks.base import TaskData
from host.cores import usable_cores
from host.errors import UserError
from host.output import writing
from host.quiet import Quiet
from host.strangers.regular import read_text

WAYS_FOLDER, PROFILES_FOLDER = ".ways", ".profiles"
"""Where a study keeps them, in its own folder."""

_OPTION = "another hydra.sweep.dir=..."


class KnownMeasurements:
    """Those of one run's study.

    Args:
        study: its folder.
        quiet: by which runs of the study stand still where another one measures.
        model_and_task: their configurations, by which ways are told from one another.
        step: digits for what a worker's steps are; None: no other run has the same for certain.
    """

    def __init__(
        self, study: Path, quiet: Quiet, *, model_and_task: object, step: str | None
    ) -> None:
        self._study, self._quiet = study, quiet
        self._model_and_task = str(model_and_task)
        self._step = step

    def give_way(self) -> None:
        """Between two steps: stand still where another run of the study measures."""
        self._quiet.give_way()

    def profile(self, measure: Callable[[], Profile]) -> Profile:
        """The one that an earlier run has measured, else what `measure` returns now."""
        known = self._known_profile()
        if known is not None:
            return known
        with self._quiet.measuring():
            known = self._known_profile()  # another run may have measured it meanwhile
            return known or self._remember_profile(measure())

    def stacking(self, plan: Plan, data: TaskData) -> StackingChoice:
        """As `choose_stacking`, by the way that an earlier run has found."""
        if plan.cluster.stacking != MEASURED or plan.resume is not None:
            return choose_stacking(plan, data)
        known = self.known_way(plan)
        if known is not None:
            return choose_stacking(plan, data, known)
        with self._quiet.measuring():
            choice = choose_stacking(plan, data, self.known_way(plan))
            self.remember_way(plan, choice)
        return choice

    def known_way(self, plan: Plan) -> Way | None:
        """What is known for a way that `plan` leaves open; None: nothing."""
        with suppress(OSError):
            told = read_text(self._way_file(plan))
            return next((way for way in WAYS if way == told), None)
        return None

    def remember_way(self, plan: Plan, choice: StackingChoice) -> None:
        """What `plan` has measured, if it has, and if no other run was first."""
        if not choice.seconds:
            return
        file = self._way_file(plan)
        with writing(file.parent, _OPTION):
            file.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError), file.open("x") as opened:
                opened.write(choice.way)

    def _way_file(self, plan: Plan) -> Path:
        numbers = (plan.workers, plan.batch_size, plan.accumulate, usable_cores())
        names = (plan.names["task"], plan.precision, plan.backend.device, str(plan.model))
        key = identity((numbers, names, self._model_and_task))
        return self._study / WAYS_FOLDER / f"{key}.txt"

    def _known_profile(self) -> Profile | None:
        """None also for a file that is none, as one that was cut off."""
        file = self._profile_file
        with suppress(UserError):
            return None if file is None or not file.is_file() else Profile.load(file)
        return None

    def _remember_profile(self, profile: Profile) -> Profile:
        file = self._profile_file
        if file is None:
            return profile
        unfinished = file.with_suffix(f".{os.getpid()}.tmp")
        saved = profile.save(unfinished)
        with writing(file, _OPTION):
            unfinished.replace(file)
        return saved

    @property
    def _profile_file(self) -> Path | None:
        folder = self._study / PROFILES_FOLDER
        return None if self._step is None else folder / f"{self._step}.yaml"
