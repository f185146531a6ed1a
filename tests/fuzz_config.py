"""Is every configuration run or refused by one sentence? They are made from the schema and the
files of `conf/`: every key, with values of wrong type, size and meaning.

    python -m tests.fuzz_config                        2,000 of them, from a new seed
    python -m tests.fuzz_config --seed 17 --count 1    one again, as a fault was printed

All are composed and planned in this process, some also checked against their data, and some run for
one step on simulated workers, in forks. What is neither done nor refused is printed with its seed.
Ten seeds in a row share their choices of groups, since Hydra takes longest to compose these.
"""

import argparse
import contextlib
import io
import os
import random
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path

import torch
import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import DictConfig

from experiments.plan.compose import compose_with_hydra, of_app
from experiments.plan.factory import make_plan
from experiments.plan.messages import is_of_hydra, sentence
from experiments.plan.overrides import read_overrides
from experiments.plan.plan import MEASURED, Plan
from experiments.plan.schema import GROUPS, Schema, TargetSchema
from experiments.runs.run import load_data, run
from experiments.tasks.base import TaskData
from host import conf
from host.errors import UserError
from host.processes import run_in_child

TOGETHER = 10
"""Configurations that share a composition."""

CHECKED, RUN = 4, 100
"""One of so many is checked against its data, and one of so many is run."""

LIMIT_S, RUN_LIMIT_S = 120, 120
LONGEST_SENTENCE = 3_000
SLOW = {
    *("minilm", "minilm_top", "movie_states", "resnet18"),
    *("own", "dataset", "image_folder", "text", "cifar10", "cifar100"),
}
"""Models and tasks that take long, or what not every machine has."""

SIZES = ("0", "1", "2", "3", "7", "-1", "64", "1000000000000000000", "-1000000000000000000000000")
NUMBERS = ("0.5", "1e-3", "-0.5", "1.5", "1e30", "1e-320", "nan", "inf", "-inf", "1_0", "0x10")
USUAL = ("1", "2", "4", "0.5", "0.1", "true", "false", "null")
WORDS = ("true", "null", "four", "''", "' '", "auto", "ring", "none", "cpu", "cuda", "float16", "ü")
FORMS = (
    "[]",
    "[1,2]",
    "{}",
    "{a: 1}",
    "'${workers}'",
    "'${nowhere}'",
    "'???'",
    "'a=b'",
    "/",
    "a b",
)
OF_PATHS = ("/nonexistent", "/dev/null", "/proc/self/mem", ".", "x" * 300)
WRONG = ("+{key}x={value}", "{key}x={value}", "~{key}", "{key}", "{key}.a={value}", "{key}={{")


@dataclass(frozen=True)
class Fault:
    """A configuration that was neither run nor refused by one sentence."""

    seed: int
    overrides: tuple[str, ...]
    what: str


@lru_cache
def keys_of(group: str, choice: str) -> tuple[str, ...]:
    """The keys of a file of `conf/`, as on a command line."""
    file = conf.files(group).get(choice)
    known = {} if file is None else yaml.safe_load(file.read_text()) or {}
    return tuple(f"{group.replace('/', '.')}.{key}" for key in known if key != "defaults")


def keys_of_app() -> Iterator[str]:
    """Those that no file of a group has."""
    yield from (field.name for field in fields(Schema) if field.name not in (*GROUPS, "names"))
    yield from (f"target.{field.name}" for field in fields(TargetSchema))
    yield from ("names.algo", "names.net")


def groups_drawn(chance: random.Random) -> dict[str, str]:
    """A choice of each group; of some, one of their parts."""
    chosen = {group: chance.choice(sorted(set(conf.files(group)) - SLOW)) for group in GROUPS}
    if chance.random() < 0.7:  # else few fit
        chosen |= {"task": "mnist5k", "model": chance.choice(["mlp", "cnn"])}
    if chance.random() < 0.8:
        chosen["backend"] = "sim"
    for part in sorted((conf.PACKAGED).glob("*/*/")):
        name = f"{part.parent.name}/{part.name}"
        if chance.random() < 0.1 and name.partition("/")[0] in GROUPS:
            chosen[name] = chance.choice(sorted(conf.files(name)))
    if chance.random() < 0.05:
        chosen[chance.choice(GROUPS)] = chance.choice(["nope", "", "null", "[sgd,adam]"])
    return chosen


def overrides_drawn(chance: random.Random, chosen: dict[str, str]) -> Iterator[str]:
    """Some keys with values, of which at least one is likely to be wrong."""
    of_groups = [key for group, choice in chosen.items() for key in keys_of(group, choice)]
    for _ in range(chance.choice([1, 1, 2, 3])):
        key = chance.choice(chance.choice([list(keys_of_app()), of_groups]))
        kinds = (USUAL, USUAL, USUAL, SIZES, NUMBERS, WORDS, FORMS, OF_PATHS)
        value = chance.choice(chance.choice(kinds))
        form = chance.choice(WRONG) if chance.random() < 0.1 else "{key}={value}"
        yield form.format(key=key, value=value)


class Fuzz:
    """Tries configurations; `outcomes` counts what became of them."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self._composed: tuple[dict[str, str], DictConfig | UserError] | None = None

    def tried(self, seed: int) -> Fault | None:
        """The configuration of `seed`; None where it is well."""
        chosen = groups_drawn(random.Random(seed // TOGETHER))
        chance = random.Random(f"{seed}")
        own = tuple(overrides_drawn(chance, chosen))
        words = tuple(f"{group}={choice}" for group, choice in chosen.items())
        signal.signal(signal.SIGALRM, _too_long)
        signal.alarm(LIMIT_S)
        try:
            config = self._config(chosen, words, own)
            plan = make_plan(config, Path("/nonexistent/run"))
            outcome = "planned"
            if seed % CHECKED == 0:
                data = load_data(plan)
                outcome = "checked"
                if seed % RUN == 0 and is_cheap(plan, data):
                    outcome = "run"
                    signal.alarm(RUN_LIMIT_S + LIMIT_S)
                    run_in_child(lambda: run_once(config), doing="running", limit_s=RUN_LIMIT_S)
        except UserError as error:
            return self._refused(seed, words + own, str(error))
        except Exception as error:
            if is_of_hydra(error):
                return self._refused(seed, words + own, sentence(error))
            return self._fault(seed, words + own, _where(error))
        finally:
            signal.alarm(0)
        self.outcomes[outcome] += 1
        return None

    def _config(
        self, chosen: dict[str, str], words: tuple[str, ...], own: tuple[str, ...]
    ) -> DictConfig:
        if self._composed is None or self._composed[0] != chosen:
            try:
                self._composed = chosen, compose_with_hydra(words)
            except UserError as error:
                self._composed = chosen, error
        composed = self._composed[1]
        if isinstance(composed, UserError):
            raise composed
        config = composed.copy()
        overrides = [word.parsed for word in read_overrides(own) if word.parsed is not None]
        ConfigLoaderImpl._apply_overrides_to_config(overrides, config)
        return of_app(config)

    def _refused(self, seed: int, overrides: tuple[str, ...], said: str) -> Fault | None:
        if not said.strip() or "\n" in said or len(said) > LONGEST_SENTENCE:
            return self._fault(seed, overrides, f"no sentence: {said!r}")
        self.outcomes["refused"] += 1
        return None

    def _fault(self, seed: int, overrides: tuple[str, ...], what: str) -> Fault:
        self.outcomes["fault"] += 1
        return Fault(seed, overrides, what)


def is_cheap(plan: Plan, data: TaskData) -> bool:
    """Whether a step of it takes little time here."""
    return (
        plan.backend.is_simulated
        and plan.backend.device == "cpu"
        and plan.workers * plan.batch_size <= 512
        and sum(p.numel() for p in plan.model.parameters()) < 2_000_000
        and len(data.train) < 100_000
    )


def run_once(config: DictConfig) -> str:
    """The status of a run of one step. Raises what it does, and what is no status of a record."""
    config.max_steps = config.eval_every = 1
    if config.cluster.stacking == MEASURED:
        config.cluster.stacking = "loop"
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(said):
        status = run(config, Path(folder, "run"))
    if status not in ("completed", "diverged"):
        raise RuntimeError(f"{status}: {said.getvalue()}")
    return status


def _too_long(*_: object) -> None:
    raise TimeoutError(f"took longer than {LIMIT_S} s")


def _where(error: Exception) -> str:
    """Such as "ValueError: no number (netsim/conditions/condition.py:80)"."""
    ours = [f for f in traceback.extract_tb(error.__traceback__) if ".venv" not in f.filename]
    place = f"{ours[-1].filename}:{ours[-1].lineno}" if ours else "unknown"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]} ({place})"


def main() -> int:
    """The command line; returns the exit code: 0 where there is no fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_config")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**8 * TOGETHER)
    parser.add_argument("--count", type=int, default=2_000)
    options = parser.parse_args()
    print(f"{options.count} configurations from seed {options.seed} on", flush=True)
    return min(1, len(fuzz(options.seed, options.count)))


def fuzz(seed: int, count: int) -> list[Fault]:
    """The faults among `count` configurations from `seed` on, which are printed."""
    torch.set_num_threads(1)  # a pool of threads would not survive the forks
    began_s, tries, faults = time.perf_counter(), Fuzz(), []
    os.environ["HYDRA_FULL_ERROR"] = "1"
    for number in range(seed, seed + count):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fault = tries.tried(number)
        if fault is not None:
            faults.append(fault)
            print(f"--seed {fault.seed} --count 1: {fault.what}\n    {fault.overrides}", flush=True)
    counts = ", ".join(f"{n} {what}" for what, n in tries.outcomes.most_common())
    print(f"{counts}; {time.perf_counter() - began_s:.0f} s", flush=True)
    return faults


if __name__ == "__main__":
    sys.exit(main())
