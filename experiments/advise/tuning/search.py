"""The search itself: trials one after the other, in a study that outlives its processes.

A study is a file, study.db (SQLite), in the folder of the search. Any number of processes take
part; each trial is held by one of them, by a lock that goes with the process. What a process leaves
behind that was stopped or killed is begun anew by the next process, with the same values.
"""

from __future__ import annotations

import fcntl
import math
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import reduce
from pathlib import Path

import optuna  # pyright: ignore[reportMissingImports]
from optuna.trial import FrozenTrial, TrialState  # pyright: ignore[reportMissingImports]

from experiments.advise.tuning.left import Took, TrialsLeft, num_values
from experiments.advise.tuning.objectives import Objective
from experiments.advise.tuning.ranges import Range, Value, is_choice_of_files
from experiments.advise.tuning.request import Request, has_field
from experiments.advise.tuning.study import open_study, opening
from experiments.report.tuned import STATES, TunedTrial, Tuning, said
from experiments.runs.folder_lock import HeldError, hold, is_held
from experiments.runs.load import load_rows
from experiments.runs.progress import one_of_several
from experiments.runs.run import EndedEarly, run
from experiments.runs.summary import read_summary
from experiments.training.metrics import MetricsRow
from host.commands import say
from host.errors import Failure, UserError
from host.output import check_folder

TRIALS = "trials"
MOST_REFUSED = 20
"""In a row: more say that the ranges do not fit."""
MOST_FAILED = 3
NUM_FIRST = 5
"""Trials that are drawn at random, and before which none is pruned."""

PATIENCE = 2
"""How many times the best time or bytes a trial may take without the target."""

_OF, _DEFAULT, _TOOK = "of", "is default", "took"
_PROCESSES = "processes"
_APART = 1_000_003
"""What lies between the seeds of two processes, so that searches by other seeds draw otherwise."""
_DONE = (TrialState.COMPLETE, TrialState.PRUNED)
_STATES: dict[TrialState, str] = dict(zip((*_DONE, TrialState.FAIL), STATES, strict=True))


class Ended(EndedEarly):
    """A trial's run is ended early: it can no longer win, or has all that counts."""

    def __init__(self, reason: str, *, is_behind: bool) -> None:
        super().__init__(reason)
        self.is_behind = is_behind


class Search:
    """One process's part in a search.

    Args:
        request: the search.
        is_one_of_several: whether others of the same command print to the same output.

    Raises:
        UserError: the folder holds another search, or what is none; real runs, whose times other
            programs would change, are searched by another process already.
    """

    def __init__(self, request: Request, *, is_one_of_several: bool = False) -> None:
        self._request = request
        self._beside_others = one_of_several if is_one_of_several else nullcontext
        self._folder = request.folder
        self._reported: set[int] = set()
        self._best_yet = math.inf
        self._work = TrialsLeft(values=num_values(request))
        self._fields: dict[tuple[tuple[str, Value], ...], list[str]] = {}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        check_folder(self._folder, "folder=...")
        with self._alone(), opening(self._folder):
            self._study = self._open()
            self._take_over()

    def run(self) -> Tuning:
        """Take trials until there are as many as were asked for; returns what was found.

        Raises:
            UserError: none can be run, because of what they ask for.
            Failure: several in a row have failed.
        """
        with ExitStack() as held:
            if not self._request.plan.backend.is_simulated:
                self._hold_host(held)
            self.take_all()
        return self.save()

    @property
    def num_left(self) -> int:
        """Trials that are not done, and that nobody has begun."""
        return max(self._request.trials - self._count((*_DONE, TrialState.RUNNING)), 0)

    def take_all(self) -> None:
        """Take trials until there are as many as were asked for. Raises as `run`."""
        refusals, failures = [], []
        while True:
            with ExitStack() as held:
                self._work.begin_trial()
                trial = self._next(held)
                if trial is None:
                    return
                try:
                    self._take(trial)
                    refusals, failures = [], []
                except UserError as error:
                    refusals.append(str(error))
                    self._fail(trial, f"refused: {error}")
                except Failure as error:
                    failures.append(str(error))
                    self._fail(trial, str(error))
            if len(refusals) >= MOST_REFUSED:
                raise UserError(f"{len(refusals)} settings in a row fit nothing: {refusals[-1]}")
            if len(failures) >= MOST_FAILED:
                raise Failure(f"{len(failures)} trials in a row failed: {failures[-1]}")

    def _hold_host(self, held: ExitStack) -> None:
        try:
            held.enter_context(hold(self._folder / "real_workers"))
        except HeldError as error:
            raise UserError(
                f"another process searches with real workers in {self._folder}, and both would "
                "change each other's times: let it end, or stop it"
            ) from error

    def _open(self) -> optuna.Study:
        study = open_study(self._folder, self._request.objectives, NUM_FIRST)
        known = study.user_attrs.get(_OF)
        if known is None:
            defaults = self._request.defaults
            if all(self._request.fields[name].contains(v) for name, v in defaults.items()):
                study.enqueue_trial(defaults, user_attrs={_DEFAULT: True}, skip_if_exists=True)
            study.set_user_attr(_OF, self._request.key)
        elif known != self._request.key:
            raise UserError(
                f"{self._folder} holds another search, of other words, ranges, objectives or "
                "configuration files: choose another folder=..."
            )
        # Another process, and this one when it goes on, draw otherwise.
        others = study.user_attrs.get(_PROCESSES, 0)
        study.set_user_attr(_PROCESSES, others + 1)
        seed = self._request.plan.seed + len(study.get_trials(deepcopy=False)) + others * _APART
        seed %= 2**32  # as NumPy takes it
        study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=NUM_FIRST)
        return study

    def _next(self, held: ExitStack) -> optuna.Trial | None:
        """A trial to take, held by this process; None where there are enough."""
        with self._alone():
            if not self.num_left:
                self._take_over()
            if not self.num_left:
                return None
            trial = self._study.ask()
            held.enter_context(hold(self._run(trial.number)))
            return trial

    def _take_over(self) -> None:
        """Begin anew what was left by processes that are gone."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if not is_held(self._run(trial.number)):
                self._begin_anew(trial)

    def _take(self, trial: optuna.Trial) -> None:
        try:
            values = self._values(trial)
            rows, is_diverged = self._rows(trial, values)
        except Ended as end:
            trial.set_user_attr(_TOOK, list(self._work.end_trial()))
            self._study.tell(trial, state=TrialState.PRUNED)
            self._tell(f"trial {trial.number} ended early: {end}")
        else:
            objectives, aim = self._request.objectives, self._request.aim
            numbers = [o.diverged if is_diverged else o.of_rows(rows, aim) for o in objectives]
            trial.set_user_attr(_TOOK, list(self._work.end_trial()))
            self._study.tell(trial, numbers)
            self._tell(f"trial {trial.number}: {_told(objectives, numbers)}")
        self.save()

    def _tell(self, line: str) -> None:
        """Say that a trial is done, and how long the others will take. Among simulated workers that
        is said once the next one has begun, and shows whether it trains.
        """
        num_left = self._expect(self._count((TrialState.RUNNING,)) + 1)
        if num_left and self._request.plan.backend.is_simulated:
            say(line)
        else:
            self._work.say(line)

    def _expect(self, at_once: int) -> int:
        """Tell `_work` what is done, by all processes; returns how many trials are not."""
        done = self._study.get_trials(deepcopy=False, states=_DONE)
        took = [Took(*own.user_attrs[_TOOK]) for own in done if _TOOK in own.user_attrs]
        num_left = max(self._request.trials - len(done), 0)
        self._work.known(took, num_left, at_once)
        return num_left

    def _tell_kind(self, number: int) -> None:
        """Say how long the search will take, now that a trial has begun."""
        source = read_summary(self._run(number)).replayed_from
        self._work.is_of(is_reused=source is not None)
        self._expect(self._count((TrialState.RUNNING,)))
        if self._work.has_told and self._request.plan.backend.is_simulated:
            what = "trains" if source is None else f"takes the values of {source}"
            self._work.say(f"trial {number} {what}")

    def _count(self, states: tuple[TrialState, ...]) -> int:
        return len(self._study.get_trials(deepcopy=False, states=states))

    def _values(self, trial: optuna.Trial) -> dict[str, Value]:
        fields = self._request.fields
        values = {n: _suggest(trial, n, fields[n]) for n in fields if is_choice_of_files(n)}
        for name in self._fields_with(values):
            values[name] = _suggest(trial, name, fields[name])
        return values

    def _fields_with(self, files: dict[str, Value]) -> list[str]:
        """The other fields that are there with these choices of files, composed once for each."""
        key = tuple(files.items())
        if key not in self._fields:
            config = self._request.config(files)
            names = [name for name in self._request.fields if name not in files]
            self._fields[key] = [name for name in names if has_field(config, name)]
        return self._fields[key]

    def _rows(
        self, trial: optuna.Trial, values: dict[str, Value]
    ) -> tuple[Sequence[MetricsRow], bool]:
        """Those of the trial's run, and whether it diverged."""
        words, rows = self._request.overrides_with(values), []
        self._reported, self._best_yet = set(), self._best()
        say(f"trial {trial.number}: {' '.join(words[len(self._request.overrides) :])}")

        def watch(row: MetricsRow) -> None:
            if not rows:
                self._tell_kind(trial.number)
            rows.append(row)
            self._judge(trial, rows)

        folder = self._run(trial.number)
        try:
            with self._beside_others():
                status = run(self._request.config(values), folder, words, self._folder, watch)
        except Ended as end:
            if end.is_behind:
                raise
            return rows, False
        if status == "failed":
            raise Failure(read_summary(folder).reason or "the run failed")
        return load_rows(folder), status == "diverged"

    def _judge(self, trial: optuna.Trial, rows: Sequence[MetricsRow]) -> None:
        """Raise `Ended` where the trial has all that counts, or is far behind."""
        if len(self._request.objectives) != 1:  # one of two may still be good
            return
        (objective,), row = self._request.objectives, rows[-1]
        if objective.so_far is None:
            self._judge_number(trial, objective, row)
            return
        aim, spent = self._request.aim, objective.so_far(row)
        scores = [own.value for own in rows if own.value is not None]
        best = reduce(aim.target.better, scores, math.nan)
        if not aim.target.is_reached(best) and spent > PATIENCE * self._best_yet:
            shortfall = best if aim.target.lower_is_better else 1 - best
            if not math.isnan(shortfall):
                trial.report(shortfall, 0)  # by which the sampler orders such trials
            raise Ended(
                f"without the target it has {_told([objective], [spent])}, over {PATIENCE} times "
                "the best",
                is_behind=True,
            )

    def _judge_number(self, trial: optuna.Trial, objective: Objective, row: MetricsRow) -> None:
        aim = self._request.aim
        if aim.at_s is not None and row.time_s > aim.at_s:
            raise Ended(f"its clock is at {row.time_s:.3g} s", is_behind=False)
        number = objective.of_rows([row], aim)
        place = row.step if aim.at_s is None else int(10 * row.time_s / aim.at_s)
        if row.is_evaluation and place not in self._reported:
            self._reported.add(place)
            trial.report(number, place)
            if trial.should_prune():
                raise Ended(f"{_told([objective], [number])} is behind", is_behind=True)

    def _best(self) -> float:
        """The best time or bytes yet; inf before some trials are complete."""
        done = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        return min(trial.values[0] for trial in done) if len(done) >= NUM_FIRST else math.inf

    def _fail(self, trial: optuna.Trial, reason: str) -> None:
        say(f"trial {trial.number} failed: {reason}")
        self._study.tell(trial, state=TrialState.FAIL)

    def _begin_anew(self, trial: FrozenTrial) -> None:
        """It was stopped: its values are the next ones."""
        if trial.state is not TrialState.RUNNING:
            return
        self._study.tell(trial.number, state=TrialState.FAIL)
        shutil.rmtree(self._run(trial.number), ignore_errors=True)
        if trial.params or trial.user_attrs.get(_DEFAULT):
            attributes = {_DEFAULT: True} if trial.user_attrs.get(_DEFAULT) else None
            values = trial.params or self._request.defaults
            self._study.enqueue_trial(values, user_attrs=attributes)

    def _run(self, number: int) -> Path:
        return self._folder / TRIALS / f"{number:04d}"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process of the search at a time."""
        with (self._folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def save(self) -> Tuning:
        """Write what was found until now; returns it."""
        with self._alone():
            trials = self._study.get_trials(deepcopy=False)
            has_any = any(trial.state is TrialState.COMPLETE for trial in trials)
            best = sorted(self._study.best_trials, key=lambda t: t.number) if has_any else []
            objectives = self._request.objectives
            best = best if len(objectives) > 1 else best[:1]
            tuning = Tuning(
                folder=str(self._folder),
                command=self._request.command,
                objectives=[(o.name, o.unit, o.is_maximized) for o in objectives],
                trials=[_tuned(trial) for trial in trials if trial.state in _STATES],
                best=[trial.number for trial in best],
                commands=[self._request.command_of(trial.params) for trial in best],
                importances={
                    objective.name: self._importances(place, objective, trials)
                    for place, objective in enumerate(objectives)
                },
            )
            tuning.save()
            return tuning

    def _importances(
        self, place: int, objective: Objective, trials: Sequence[FrozenTrial]
    ) -> dict[str, float]:
        """By PED-ANOVA (arXiv 2304.10255): which fields the best trials have in common. None of
        fewer trials than it takes to say anything.
        """
        done = [t.values[place] for t in trials if t.state is TrialState.COMPLETE and t.params]
        finite = sorted({value for value in done if math.isfinite(value)})
        if len(finite) < NUM_FIRST:
            return {}
        sign = -1 if objective.is_maximized else 1
        worst = 2 * max(map(abs, finite))

        def cost(trial: FrozenTrial) -> float:
            value = trial.values[place]
            return sign * value if math.isfinite(value) else worst

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a target of one's own must be a cost
            shares = optuna.importance.get_param_importances(self._study, target=cost)
        return {name: float(share) for name, share in shares.items()}


def _suggest(trial: optuna.Trial, name: str, own: Range) -> Value:
    """What the trial has for a field."""
    if own.choices:
        return trial.suggest_categorical(name, own.choices)
    if own.is_whole:
        return trial.suggest_int(name, int(own.low), int(own.high), log=own.log)
    return trial.suggest_float(name, own.low, own.high, log=own.log)


def _tuned(trial: FrozenTrial) -> TunedTrial:
    return TunedTrial(
        number=trial.number,
        state=_STATES[trial.state],
        fields=dict(trial.params),
        values=list(trial.values or ()) if trial.state is TrialState.COMPLETE else [],
        is_default=bool(trial.user_attrs.get(_DEFAULT)),
    )


def _told(objectives: Sequence[Objective], numbers: Sequence[float]) -> str:
    pairs = zip(objectives, numbers, strict=True)
    return ", ".join(f"{o.name} {said(number, o.unit)}" for o, number in pairs)
