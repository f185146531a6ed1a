"""Hydra's sweeper of this project: it gives the launcher what is not done yet."""

import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, Quote, QuotedString
from hydra.core.utils import JobReturn
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from experiments.plan.identity import config_text, identity
from experiments.plan.messages import choices
from experiments.plan.overrides import normalize_overrides, values_of
from experiments.runs.side_by_side import (
    check_side_by_side,
    jobs_at_once,
    needs_host,
    refuse_alone,
)
from experiments.runs.study import StudyRun, Sweep
from host.commands import check_stop
from host.errors import Failure, UserError
from host.output import check_folder, writing
from hydra_plugins.relaxlab.host_launcher import HostLauncher

OmegaConf.register_new_resolver("identity", identity, replace=True)


class StudySweeper(BasicSweeper):
    """Every combination, as Hydra's own `BasicSweeper`, but for those that are done.

    Args:
        max_batch_size: how many runs the launcher is given at a time; None: all.
        params: what is swept beside the command line, by key.
        retry_failed: whether what has failed is run again.
        at_once: how many trainings of simulated workers are at work at once, by Hydra's own
            launcher; None: one on each core, within memory.
    """

    def __init__(
        self,
        max_batch_size: int | None = None,
        params: dict[str, str] | None = None,
        retry_failed: bool = False,
        at_once: int | None = None,
    ) -> None:
        super().__init__(max_batch_size, params)
        self._retry_failed = retry_failed
        self._at_once = at_once

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Set up the sweep; sets joblib's `n_jobs`, unless given, to what may share this host."""
        launcher = config.hydra.launcher
        given = OmegaConf.to_container(config.hydra.overrides.hydra, resolve=False)
        is_told = "hydra.launcher.n_jobs" in values_of([str(override) for override in given or ()])
        if "n_jobs" in launcher and not is_told:
            launcher.n_jobs = jobs_at_once(config)
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)
        if isinstance(self.launcher, BasicLauncher):
            self.launcher = HostLauncher(self._at_once)
            self.launcher.setup(
                hydra_context=hydra_context, task_function=task_function, config=config
            )

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        """Run what `arguments` ask for.

        Raises:
            UserError: nothing was run, because of what they ask for.
            RunsFailed: not all runs are done.
        """
        assert self.config is not None
        _check_number("max_batch_size", self.max_batch_size)
        _check_number("at_once", self._at_once)
        if self._at_once is not None and not isinstance(self.launcher, HostLauncher):
            raise UserError(
                "hydra.sweeper.at_once is of this host's own launcher: leave out the one or the "
                "other, hydra.sweeper.at_once or hydra/launcher"
            )
        root = Path(self.config.hydra.sweep.dir).absolute()
        runs = list(self._runs(root, arguments))
        check_side_by_side(runs, self.config.hydra.launcher)
        if self._at_once not in (None, 1):
            refuse_alone(sum(run.needs_host for run in runs), "set hydra.sweeper.at_once=1")
        asked = Sweep(root, runs)
        todo = asked.begin(retry_failed=self._retry_failed)
        if todo:
            check_folder(root, "another hydra.sweep.dir=...")
        returns: list[Sequence[JobReturn]] = []
        trouble = ""
        try:
            self._launch(todo, returns)
        except UserError:
            raise
        except Failure as error:
            check_stop()
            trouble = str(error)
        except Exception as error:
            lines = str(error).strip().splitlines() or ["it says nothing"]
            if _is_of_slurm(error):
                raise UserError(
                    f"Slurm took no job ({lines[-1]}): start this on a "
                    "host of a cluster whose Slurm is configured, or leave hydra/launcher out"
                ) from error
            traceback.print_exc()
            trouble = f"{type(error).__name__}: {lines[0]}"
        num_refused = _tell_refusals(returns, num_asked=len(todo))
        asked.end(trouble, num_refused=num_refused)
        return returns

    def _launch(self, runs: list[StudyRun], returns: list[Sequence[JobReturn]]) -> None:
        """Add to `returns` what the launcher returns. Raises what it or a run has raised."""
        assert self.launcher is not None
        size = max(1, len(runs)) if self.max_batch_size is None else self.max_batch_size
        for start in range(0, len(runs), size):
            overrides = [list(run.overrides) for run in runs[start : start + size]]
            returned = self.launcher.launch(overrides, initial_job_idx=start)
            _ = [job_return.return_value for job_return in returned]  # raises what the run raised
            returns.append(returned)

    def _runs(self, root: Path, arguments: list[str]) -> Iterator[StudyRun]:
        """Every combination, composed. Raises Hydra's errors for one that does not fit, and
        `UserError` where there is none.
        """
        assert self.config is not None and self.hydra_context is not None
        loader = self.hydra_context.config_loader
        parser = OverridesParser.create(config_loader=loader)
        overrides = parser.parse_overrides([*self._parse_config(), *arguments])
        _check_values(overrides)
        [combinations] = self.split_arguments(overrides, None)
        of_sweep = HydraConfig.instance().cfg
        for number, combination in enumerate(map(normalize_overrides, combinations)):
            config = loader.load_sweep_config(self.config, combination)
            with open_dict(config):
                config.hydra.job.num, config.hydra.job.id = number, str(number)
            HydraConfig.instance().set_config(config)
            yield _run(root, config, combination)
        HydraConfig.instance().cfg = of_sweep


def _check_number(key: str, number: object) -> None:
    """Raise `UserError` for what cannot be a number of runs."""
    if number is not None and (type(number) is not int or number < 1):
        raise UserError(
            f"hydra.sweeper.{key} must be a whole number, at least 1, or null, got {number}"
        )


def _check_values(overrides: Sequence[Override]) -> None:
    """Raise `UserError` for a word that asks for no value at all: a sweep of it has no run. Where
    a word is given twice, the last one counts.
    """
    for override in {own.get_key_element(): own for own in overrides}.values():
        if not override.is_discrete_sweep() or any(True for _ in override.sweep_string_iterator()):
            continue
        names = ", ".join(choices(override.key_or_group))
        has_choices = isinstance(override.value(), Glob) and names
        raise UserError(
            f"{override.input_line} matches none of {names}"
            if has_choices
            else f"{override.input_line} has no value: give one at least"
        )


def _run(root: Path, config: DictConfig, overrides: Sequence[str]) -> StudyRun:
    """That of a composed configuration. Its folder below `root` has a name of its own, the same in
    every sweep.
    """
    of_task = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
    plain = OmegaConf.to_container(of_task, resolve=True)
    assert isinstance(plain, dict)
    key = identity(config_text({str(k): v for k, v in plain.items()}))
    subdir = f"{config.hydra.sweep.subdir}_{key}"
    with writing(root / subdir, "another hydra.sweep.subdir=..."):
        (root / subdir).exists()  # which a name that is too long is refused
    where = [f"hydra.sweep.dir={_quoted(str(root))}", f"hydra.sweep.subdir={_quoted(subdir)}"]
    return StudyRun(overrides=(*overrides, *where), identity=key, needs_host=needs_host(config))


def _is_of_slurm(error: Exception) -> bool:
    """Whether it is submitit's word that a command of Slurm has failed, or that there is none."""
    is_failed = type(error).__module__.startswith("submitit.")
    return is_failed or "on a slurm cluster" in str(error)


def _tell_refusals(returns: list[Sequence[JobReturn]], *, num_asked: int) -> int:
    """Print why runs were not begun; returns how many were refused. Raises `UserError` if all
    were.
    """
    outcomes = [job_return.return_value for returned in returns for job_return in returned]
    for outcome in outcomes:
        if outcome.status == "held":
            print(f"left: {outcome.reason}")
    reasons = [outcome.reason for outcome in outcomes if outcome.status == "refused"]
    if reasons and len(reasons) == num_asked:
        raise UserError("; ".join(dict.fromkeys(reasons)))
    for reason in reasons:
        print(f"refused: {reason}")
    return len(reasons)


def _quoted(text: str) -> str:
    """The text as a quoted value on Hydra's command line."""
    return QuotedString(text=text, quote=Quote.single).with_quotes()
