"""Runs of settings on several networks with several seeds. As in a sweep, what is done is left out,
and one training serves all networks.

A setting is composed once. Networks and seeds are put into its configuration before anything in it
is resolved, so that what refers to them follows: Hydra takes longer to compose a run than
simulation takes to replay one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf, read_write

from experiments.advise.tuning.draws import Settings
from experiments.plan.compose import compose_with_hydra, of_app
from experiments.plan.identity import config_text, identity, plain
from experiments.plan.overrides import read_word, values_of
from experiments.runs.folder_lock import HeldError, hold
from experiments.runs.run import run
from experiments.runs.side_by_side import fitting, needs_host, refuse_alone, run_groups
from experiments.runs.study import Standing, clear, read_record
from experiments.simulated.kept_trainings import grouped
from host.commands import check_stop, say
from host.errors import Failure, UserError
from host.remaining import Work
from host.words import counted


@dataclass(frozen=True, kw_only=True)
class SettingRun:
    """One run: its configuration, resolved, the words that make it, and its folder's name."""

    config: dict[str, Any]
    words: tuple[str, ...]
    name: str


def runs_of(
    settings: Settings, common: Sequence[str], nets: Sequence[str], seeds: Sequence[int]
) -> Iterator[SettingRun]:
    """Those of all settings, each beside the words in `common`, on its own network, where it names
    one, else on all of `nets`. Raises `UserError` for words that do not fit.
    """
    networks: dict[tuple[str, ...], DictConfig] = {}
    composed: dict[tuple[str, ...], DictConfig] = {}
    for contestant, text in ((name, text) for name, own in settings.items() for text in own):
        named = values_of(text.split()).get("net")
        words = tuple(word for word in text.split() if read_word(word).key != "net")
        of_net = tuple(word for word in words if read_word(word).is_of("net"))
        if words not in composed:
            composed[words] = compose_with_hydra([*common, *words])
        for seed, net in product(seeds, nets if named is None else [named]):
            there = (*of_net, f"net={net}")
            if there not in networks:
                networks[there] = compose_with_hydra([*common, *words, f"net={net}"]).net
            config = _put_in(composed[words], net, networks[there], seed)
            yield _one(config, contestant, (*common, *words, f"net={net}", f"seed={seed}"))


def _put_in(composed: DictConfig, name: str, net: DictConfig, seed: int) -> dict[str, Any]:
    """The configuration of `composed`, resolved with this network and seed."""
    with read_write(composed.hydra):
        composed.hydra.runtime.choices.net = name
    composed.net, composed.seed = net, seed
    return plain(of_app(composed))


def _one(config: dict[str, Any], contestant: str, words: tuple[str, ...]) -> SettingRun:
    key = identity(config_text(config))
    name = f"{contestant}_{config['names']['net']}_s{config['seed']}_{key}"
    return SettingRun(config=config, words=words, name=name)


class _Ended(NamedTuple):
    """A run by its name, and how it ended; None: another process runs it."""

    name: str
    status: str | None


def run_all(runs: Sequence[SettingRun], root: Path, at_once: int = 1) -> None:
    """Run what is not done yet, each in a folder below `root`; what another process runs is left to
    it. With several `at_once` those of one training are in one child, with its share of the cores.

    Raises `UserError` for several at once that measure times here, before any runs, and `Failure`
    at the end where some have failed.
    """
    if at_once > 1:
        num_alone = sum(needs_host(OmegaConf.create(one.config)) for one in runs)
        refuse_alone(num_alone, "set --at-once 1")
    failed: list[str] = []
    todo = [one for one in runs if not _is_done(root / one.name)]
    say(f"{counted(len(runs), 'run')}, {len(todo)} to do")

    def take(ended: Iterable[_Ended]) -> None:
        for name, status in ended:
            if status not in (None, "completed", "diverged"):
                failed.append(f"{name} {status}")

    if at_once == 1:
        left = _Left(todo, root, len(runs))
        for one in runs:
            check_stop()
            ended = _run_if_free(one, root)
            take([ended])
            if ended.status is not None:
                left.tell(ended.name)
    elif todo:
        places = grouped([one.config for one in todo])
        groups = [[todo[place] for place in group] for group in places]
        run_groups(groups, partial(_run_if_free, root=root), at_once, take)
    if failed:
        raise Failure(f"{counted(len(failed), 'run')} failed, the first one: {failed[0]}")


def fitting_here(runs: Iterable[SettingRun], root: Path) -> int:
    """How many of those that are not done may run at once here."""
    return fitting(one.config for one in runs if not _is_done(root / one.name))


def _run_if_free(one: SettingRun, root: Path) -> _Ended:
    try:
        with hold(root / one.name):
            return _Ended(one.name, _run(one, root))
    except HeldError:
        return _Ended(one.name, None)
    except UserError as error:
        return _Ended(one.name, f"was refused: {error}")


class _Left:
    """How many of the runs are done, here and by other processes, and how long the others take."""

    def __init__(self, todo: Sequence[SettingRun], root: Path, num_runs: int) -> None:
        self._root, self._num_runs = root, num_runs
        self._open = {one.name for one in todo}
        self._new = {name for name in self._open if not (root / name).exists()}
        self._work = Work()
        self._work.begin("runs", [1.0] * len(self._open))

    def tell(self, name: str) -> None:
        """One of them is done; what others have begun since the beginning counts as done, too."""
        gone = ({name} & self._open) | self._new.intersection(os.listdir(self._root))
        self._open -= gone
        self._new -= gone
        number = self._num_runs - len(self._open)
        for left in reversed(range(len(gone))):
            self._work.done(line="" if left else f"run {number} of {self._num_runs}")


def _is_done(folder: Path) -> bool:
    record = read_record(folder, is_held=False)
    return record is not None and record.standing is Standing.DONE


def _run(one: SettingRun, root: Path) -> str:
    folder = root / one.name
    record = read_record(folder, is_held=False)
    if record is not None and record.standing is Standing.DONE:
        return record.status
    if record is not None:
        clear(folder)
    return run(OmegaConf.create(one.config), folder, one.words, root)
