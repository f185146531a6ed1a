"""The configurations of records, option by option, and in which options runs differ.

Whatever compares runs has them checked here, so that unlike ones are refused by the same sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.plan.identity import ADDED
from host.bounded_yaml import read_mapping
from host.errors import UserError
from host.strangers.regular import read_text

if TYPE_CHECKING:  # it takes half a second
    import pandas as pd

_ALGO = "algo."
_OF_NO_SETTING = {"seed", "resume", "tracker", "cluster.timeout_s", "cluster.stacking"}
"""What makes no other setting: a limit, how a run came about or is shown, how equal values are
computed.
"""
_OF_SEED = {"topology.seed", "cluster.jitter.seed"}
"""What follows the seed by its own file in `conf/`: no other setting either."""
_MAY_FOLLOW = {"algo.seed", "compressor.seed"}
"""What makes no setting where it is the seed in all runs, as by `algo.seed=${seed}`."""
OF_NO_ACCURACY = (
    *("task.target_accuracy", "data.loaders"),
    *("log_every", "checkpoint_every", "trace"),
)
"""What changes no accuracy after equally many steps."""
_OF_A_SIDE = (
    *("backend.", "names.backend", "net.backend"),
    *("cluster.", "profile", "device"),
)
"""What real and simulated runs differ in: who computes and sends, and what simulated ones are told
of it. Of a network, only how its links are shaped.
"""
_MAX_WHOLE = 1 << 53
CONFIGURATION = "configuration"
"""The one option of a run whose configuration cannot be read: it is no seed of any setting."""
_SEED = re.compile(r"^seed: (.*)\n?", re.MULTILINE)


@lru_cache(maxsize=4096)
def read_options(text: str) -> dict[str, Any]:
    """The values of a configuration by their path, of which equal numbers are one: 25.0 is 25.

    Seeds of one setting have the same text but for its line of the seed, and YAML takes a
    millisecond. Raises `ValueError` as `read_mapping`.
    """
    return {path: _canonical(value) for path, value in read_mapping(text).items()}


def _canonical(value: Any) -> Any:
    """Whole floats as ints, also in lists and in mappings of these; those that have more digits
    than a float knows stay.
    """
    match value:
        case float() if value.is_integer() and abs(value) <= _MAX_WHOLE:
            return int(value)
        case list():
            return [_canonical(part) for part in value]
        case dict():
            return {key: _canonical(part) for key, part in value.items()}
    return value


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration as {"bits": 8, "optim.lr": 0.1}, its seed a text; where it cannot be read,
    only that. A field of the algorithm by whose name the run has an option, or could have one, is
    {"algo.clip_norm": 1.0}.
    """
    try:
        text = read_text(folder / "config.yaml")
        return ADDED | _parsed(_SEED.sub("", text)) | {"seed": "".join(_SEED.findall(text))}
    except (OSError, ValueError):
        return {CONFIGURATION: "unreadable"}


@lru_cache(maxsize=4096)
def _parsed(text: str) -> dict[str, Any]:
    values = read_options(text)
    paths = (*(path for path in values if not path.startswith(_ALGO)), *ADDED, *_OF_NO_SETTING)
    of_run = {_first_part(path) for path in paths}
    own = {path: path.removeprefix(_ALGO) for path in values}
    return {
        path if _first_part(own[path]) in of_run else own[path]: value
        for path, value in values.items()
    }


def _first_part(path: str) -> str:
    return path.partition(".")[0]


def unusual(config: Mapping[str, Any]) -> set[str]:
    """The options that are not as they are where nobody has set them."""
    return {key for key, usual in ADDED.items() if config.get(key, usual) != usual} - _OF_NO_SETTING


def differing(configs: Sequence[dict[str, Any]], group: str = "") -> set[str]:
    """The options of a `group`, such as "net.", that are not the same in all of these."""
    by_id = {id(config): config for config in configs if CONFIGURATION not in config}
    distinct = list(by_id.values())
    keys = (
        {key for config in distinct for key in config if key.startswith(group)}
        - _OF_NO_SETTING
        - _OF_SEED
        - {key for key in _MAY_FOLLOW if all(_is_of_seed(c, key) for c in distinct)}
    )
    return {key for key in keys if len({repr(config.get(key)) for config in distinct}) > 1}


def _is_of_seed(config: Mapping[str, Any], key: str) -> bool:
    return str(config.get(key, config["seed"])) == config["seed"]


def check_alike(
    runs: pd.DataFrame,
    columns: Iterable[str] = (),
    called: str = "the runs",
    *,
    but: Sequence[str] = (),
    only: Sequence[str] | None = None,
) -> None:
    """Raise `UserError`, which names the first difference and speaks of the runs as `called`, where
    `runs` (of `load_runs`) differ in one of the columns, or by their configurations, where these
    can be read, in an option: their seeds aside, in any but those of `but`, and of `only` these,
    where it is given. Both hold options, and groups such as "net.".
    """
    configs = [read_config(Path(folder)) for folder in runs.folder]
    readable = [config for config in configs if CONFIGURATION not in config]
    found: dict[str, list[Any]] = {column: list(runs[column]) for column in columns}
    for key in sorted(differing(readable)):
        if not _is_of(key, but) and (only is None or _is_of(key, only)):
            found[key] = [config.get(key) for config in readable]
    for name, values in found.items():
        texts = sorted({_text(name, value) for value in values})
        if len(texts) > 1:
            raise UserError(f"{called} differ in {name} ({', '.join(texts)}): compare like runs")


def check_sides(
    runs: pd.DataFrame, columns: Iterable[str], called: str, *, but: Sequence[str] = ()
) -> None:
    """As `check_alike`, of real and of simulated runs of one setting: those of one side differ in
    nothing but their seeds, those of both in no more than what makes them real or simulated.
    """
    check_alike(runs, columns, called, but=(*but, *_OF_A_SIDE))
    for _, side in runs.groupby(runs.backend == "sim"):
        check_alike(side, ("backend",), called, but=but)


def _is_of(key: str, options: Sequence[str]) -> bool:
    return any(
        key.startswith(option) if option.endswith(".") else key == option for option in options
    )


def _text(name: str, value: Any) -> str:
    """Of a class its name: records keep the module in which it was when they were made."""
    if name.endswith("_target_"):
        return str(value).rpartition(".")[2]
    return repr(float(value)).removesuffix(".0") if isinstance(value, float) else str(value)
