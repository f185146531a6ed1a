"""Trainings that a study's simulated runs have in common: one serves every network.

A run that differs from an earlier one of its study in nothing but its network, or in how fast its
workers are, has the same values, unless its algorithm `depends_on_timing`. So its clocks run alone,
by the profile that it names, else by that of the earlier one, and its summary names the latter in
"replayed_from".
"""

import hashlib
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from importlib import import_module
from importlib.metadata import distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from bagua_algos.communication.communicator import Operation
from experiments.plan.identity import config_text, identity
from experiments.plan.plan import Plan
from experiments.simulated.clocks import by_profile
from experiments.simulated.known import KnownMeasurements
from experiments.simulated.profile import JobKernels, Profile
from experiments.simulated.replay import RecordedTraining, replay, result_on
from experiments.simulated.simulate import (
    PROFILE,
    given_profile,
    make_timeline,
    simulate,
    too_long,
)
from experiments.tasks.base import TaskData
from experiments.training.evaluation import Evaluation
from experiments.training.metrics import MetricsRow
from experiments.training.result import Result
from experiments.training.trace import TraceFile
from host import commands
from host.environment import cpu_model
from host.output import reason
from host.quiet import Quiet
from host.strangers.regular import check_regular
from netsim.timeline.timeline import TimelineJob

FOLDER = ".trainings"
"""Where a study keeps them, in its own folder."""

_ROOMS = ("plan", "tasks", "models", "training", "simulated")
_OF_VALUES = ("bagua_algos", "kernels", *(f"experiments/{room}" for room in _ROOMS))
"""The code that computes values."""

_OF_TIME = (
    *("net", "names.net", "streams", "pattern", "pieces", "trace", "tracker"),
    *("cluster.straggler", "cluster.jitter"),
)
"""What of a configuration changes nothing but times."""

_OF_NUMBERS = (
    *("seed", "lr_scale", "schedule", "profile"),
    *("eval_every", "log_every", "checkpoint_every", "resume"),
    *("target_accuracy", "target", "stop_at_target"),
)
"""What changes which numbers a step has, and what is told of it, and not how long it lasts."""

_OF_HYDRA = ("_convert_", "_recursive_", "_partial_")
"""What says how Hydra makes an object, not of what."""

_READ = ("task", "model")
"""The groups of a configuration whose strings may be paths of what is read."""


def changes_times_alone(key: str) -> bool:
    """Whether runs that differ in this key of their configuration have the same values."""
    return key in _OF_TIME or key.startswith(tuple(f"{path}." for path in _OF_TIME))


@dataclass(frozen=True, kw_only=True)
class KeptTraining:
    """A training that serves other runs: the run that made it, and the profile it went by."""

    run: str
    training: RecordedTraining
    profile: Profile

    def run_again(
        self,
        plan: Plan,
        data: TaskData,
        on_network: Callable[[None], None],
        on_row: Callable[[MetricsRow], None],
    ) -> list[Result]:
        """Run the clocks alone, for a plan that gives the same values; returns its result."""
        profile = (given_profile(plan, data) or self.profile).save(plan.folder / PROFILE)
        script = by_profile(self.training.script, profile)
        training = replace(self.training, script=script)
        on_network(None)
        timeline = make_timeline(plan, profile)
        for row in replay(training, timeline):
            on_row(row)
        if (remark := too_long(plan, timeline)) is not None:
            print(remark, flush=True)
        if plan.trace:
            TraceFile(plan.folder).write_part(timeline.events, 0)
        return [result_on(training, timeline)]


_CLASSES = {
    (cls.__module__, cls.__qualname__): cls
    for cls in (
        *(KeptTraining, RecordedTraining, MetricsRow, Result, Evaluation),
        *(Profile, JobKernels, TimelineJob, Operation),
    )
}


class _Unpickler(pickle.Unpickler):
    """Makes objects of `_CLASSES` alone: a stranger's file runs no code."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        """One of them. Raises `UnpicklingError` for any other name."""
        try:
            return _CLASSES[module_name, global_name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module_name}.{global_name}") from None


class KeptTrainings:
    """Those of the runs of one study, in `folder`. A file appears whole."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: str) -> KeptTraining | None:
        """That with `key`; None: there is none that can be read."""
        kept = self._file(key)
        with suppress(Exception):  # damaged, it raises anything
            check_regular(kept)
            with kept.open("rb") as file:
                return _Unpickler(file).load()
        return None

    def keep(self, key: str, training: KeptTraining) -> None:
        """Write one, if there is room. Two that keep the same at once keep equal ones."""
        unfinished = self._folder / f"{key}_{identity(training.run)}.tmp"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            unfinished.write_bytes(pickle.dumps(training))
            unfinished.replace(self._file(key))
        except OSError as error:
            commands.say(f"{self._folder}: no training is kept for other runs ({reason(error)})")
            with suppress(OSError):
                unfinished.unlink()

    def _file(self, key: str) -> Path:
        return self._folder / f"{key}.pickle"


def simulate_once(
    plan: Plan, config: Mapping[str, Any], study: Path, quiet: Quiet
) -> tuple[Callable[..., list[Result]], str | None]:
    """How to run `plan`, which `config` has made, in a study with this folder: by a training that
    it has, else as `simulate`, and the training is kept. And the run that made it, None for the
    latter. What the study measures has the host for itself by `quiet`.
    """
    made_of = _made_of(config)
    key, step = _key(plan, config, made_of), _step_key(plan, config, made_of)
    known = KnownMeasurements(
        study, quiet, model_and_task=[config[part] for part in _READ], step=step
    )
    if key is None:
        return partial(simulate, known=known), None
    trainings = KeptTrainings(study / FOLDER)
    training = trainings.find(key)
    if training is not None:
        return training.run_again, training.run

    def keep(training: RecordedTraining, profile: Profile) -> None:
        run = plan.folder.name
        trainings.keep(key, KeptTraining(run=run, training=training, profile=profile))

    return partial(simulate, keep=keep, known=known), None


def _key(plan: Plan, config: Mapping[str, Any], made_of: str | None) -> str | None:
    """What runs with equal values have in common; None: the values of `plan` serve no other run."""
    if _serves_none(config, depends_on_timing=plan.algorithm.depends_on_timing):
        return None
    has_profile = plan.profile is not None  # without one, that of the first serves all
    return _digits(plan, config, made_of, has_profile, (*_OF_TIME, "profile"))


def _step_key(plan: Plan, config: Mapping[str, Any], made_of: str | None) -> str | None:
    """What runs have in common whose workers take equal steps on CPUs of one kind, so that one
    rehearsal serves them; None: no other run has the same for certain.
    """
    if plan.backend.device != "cpu":
        return None
    return _digits(plan, config, made_of, cpu_model(), (*_OF_TIME, *_OF_NUMBERS))


def _digits(
    plan: Plan,
    config: Mapping[str, Any],
    made_of: str | None,
    more: object,
    left_out: Sequence[str],
) -> str | None:
    if made_of is None:
        return None
    return identity(f"{config_text(_without(config, left_out))}{more}{plan.nodes}{made_of}")


def _without(config: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """A configuration without these keys."""
    left = dict(config)
    for path in keys:
        *groups, name = path.split(".")
        node = left
        for group in groups:
            node[group] = dict(node[group])  # a copy, which alone is changed
            node = node[group]
        node.pop(name, None)
    return left


def grouped(configs: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """The places of those configurations together that differ in nothing but times: one training
    may serve them, and for the rest of them the clocks run alone.
    """
    groups: dict[object, list[int]] = {}
    for place, config in enumerate(configs):
        is_alone = _serves_none(config, depends_on_timing=_depends_on_timing(config))
        key = place if is_alone else repr(_without(config, _OF_TIME))
        groups.setdefault(key, []).append(place)
    return list(groups.values())


def _serves_none(config: Mapping[str, Any], *, depends_on_timing: bool) -> bool:
    """Whether the training of such a run is of no use to another one."""
    is_kept = bool(config.get("checkpoint_every")) or config.get("resume") is not None
    return depends_on_timing or is_kept


def _depends_on_timing(config: Mapping[str, Any]) -> bool:
    """Of one of this package's algorithms; others' code is not imported for this."""
    target = str((config.get("algo") or {}).get("_target_"))
    if target.startswith("bagua_algos."):
        with suppress(Exception):  # of what is none, which the run refuses
            module, _, name = target.rpartition(".")
            return bool(getattr(import_module(module), name).depends_on_timing)
    return False


def _made_of(config: Mapping[str, Any]) -> str | None:
    """The code that a configuration names, in this version, and the files that it reads, as text.
    None where one of them may change unseen.
    """
    packages = {root: _installed(root) for root in _roots_of_code(config)}
    if None in packages.values():
        return None  # a user's own code, which may change between two runs
    files = [_state_of_files(text) for part in _READ for text in _strings(config[part])]
    if None in files:
        return None  # what changed there would not be seen
    read = [state for state in files if state]
    return f"{digest_of_code()}{sorted(packages.items()) or ''}{read or ''}"


def _strings(node: Any) -> Iterator[str]:
    """All strings in a configuration, but its keys."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, Mapping | list | tuple):
        for value in node.values() if isinstance(node, Mapping) else node:
            yield from _strings(value)


def _names_of_code(node: Any) -> Iterator[str]:
    """What a configuration makes its objects of: each `_target_`, and what one of Hydra's own
    functions, such as `hydra.utils.get_method`, is to look up.
    """
    if isinstance(node, Mapping):
        target = node.get("_target_")
        if isinstance(target, str):
            own = {key: value for key, value in node.items() if key not in _OF_HYDRA}
            yield from _strings(own) if target.startswith("hydra.") else [target]
        node = list(node.values())
    if isinstance(node, list | tuple):
        for value in node:
            yield from _names_of_code(value)


def _roots_of_code(config: Mapping[str, Any]) -> set[str]:
    """The packages of a configuration's code, but this project's, which `digest_of_code` reads."""
    roots = {name.partition(".")[0] for name in _names_of_code(config)}
    return roots - {"bagua_algos", "experiments", "netsim", "torch"}


@cache
def _installed(root: str) -> str | None:
    """The versions of what has brought an installed package. One that is not of an index, as by
    `pip install .`, may change without a new one: it counts by the time of its first file, too.
    None for what is not installed.
    """
    spec = find_spec(root) if root else None
    if spec is None or spec.origin is None or "site-packages" not in spec.origin:
        return None
    found = [distribution(name) for name in sorted(set(packages_distributions().get(root, ())))]
    versions = [(own.metadata["Name"], own.version) for own in found]
    is_of_index = found and all(own.read_text("direct_url.json") is None for own in found)
    return f"{versions}" if is_of_index else f"{versions} {os.stat(spec.origin).st_mtime_ns}"


def _state_of_files(text: str) -> str | None:
    """A digest of the names, sizes and times of a task's or a model's files: of that path, all
    below the folder, or those whose names match the pattern; "" where `text` names none, None where
    the folder cannot be read as a whole.
    """
    digest, num_files = hashlib.sha256(), 0
    try:
        for name, state in _files(text):
            digest.update(os.fsencode(f"{name}\0{state.st_size} {state.st_mtime_ns}\n"))
            num_files += 1
    except OSError:
        return None
    return digest.hexdigest() if num_files else ""


def _files(text: str) -> Iterator[tuple[str, os.stat_result]]:
    if text in ("", "/"):
        return
    path = Path(text)
    try:
        is_folder, is_there = path.is_dir(), path.exists()
        found = [path] if is_there else sorted(path.parent.glob(path.name))
    except (OSError, ValueError):  # too long for a path, or none
        return
    if is_folder:
        yield from _below(text, set())
    else:
        yield from ((str(file), file.stat()) for file in found if file.is_file())


def _below(folder: str, seen: set[tuple[int, int]]) -> Iterator[tuple[str, os.stat_result]]:
    """All files below a folder, also through links, which may lead back to it or nowhere."""
    own = os.stat(folder)
    if (own.st_dev, own.st_ino) in seen:
        return
    seen.add((own.st_dev, own.st_ino))
    try:
        with os.scandir(folder) as entries:
            inner = sorted(entries, key=lambda entry: entry.name)
    except PermissionError:  # such as lost+found: nothing of it is read in training, either
        return
    for entry in inner:
        if entry.is_dir():
            yield from _below(entry.path, seen)
        elif entry.is_file():
            yield entry.path, entry.stat()


@cache
def digest_of_code(root: Path = Path(__file__).parents[2]) -> str:
    """Of all below `root` that computes values, and of the form in which jobs are kept. What makes
    times of jobs (`netsim`), and what reads results, may change.
    """
    form = [(field.name, field.type) for field in fields(TimelineJob)]
    digest = hashlib.sha256(f"{torch.__version__}{form}".encode())
    for package in _OF_VALUES:
        for file in sorted((root / package).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()
