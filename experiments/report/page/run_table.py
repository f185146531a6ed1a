"""The table of runs, and what each of them opens: its configuration, origin and command."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.report.configurations import read_options
from experiments.report.data import ReportData
from experiments.report.page.packing import column, columns, plain
from experiments.report.results_table import SITUATION
from experiments.runs.fields import field_types
from experiments.runs.load import load_environment
from experiments.runs.summary import Summary
from host.bounded_yaml import read_mapping
from host.strangers.regular import read_text

MAX_LINKS = 32
"""The most links of a run that the page lists."""

_HEADERS: dict[str, str] = {
    "name": "algorithm",
    "net": "network",
    "workers": "workers",
    "seed": "seed",
    "status": "status",
    "time_to_accuracy_s": "time to target (s)",
    "target": "target",
    "final_score": "final score (test)",
    "steps": "steps",
    "steps_per_s": "steps/s",
    "mb_sent_per_worker": "MB sent per worker",
    "learning_rate": "learning rate",
    "interval": "interval",
    "interval_ms": "interval (ms)",
    "bits": "bits",
    "batch_size": "batch",
    "asked_rate_mbit": "Mbit/s asked",
    "achieved_rate_mbit": "Mbit/s measured",
    "achieved_rtt_ms": "round trip measured (ms)",
    "exposed_communication_s": "exposed communication (s)",
    "spread": "spread of weights",
    **{
        name: name.replace("_", " ")
        for name in SITUATION
        if name not in ("net", "workers", "target", "asked_rate_mbit")
    },
    "optim": "optimizer",
    "backend": "backend",
    "reason": "reason",
    "place": "folder",
}
"""Every column, in the order of the page. One of which no run has a value is left out."""

_TIMES = ["time_to_accuracy_s", "steps_per_s", "exposed_communication_s"]
"""Of workers that shared a GPU these are no claim, and left out."""

_OF_CONFIGURATION = ("interval", "interval_ms", "bits", "batch_size")
_LARGE = {"links", "tuning", "shares", "stacking", "stream_trial", "pattern_trial", "tcp"}
_SEED = re.compile(r"^seed: .*\n?", re.MULTILINE)


def run_table(data: ReportData, root: Path) -> dict[str, Any]:
    """The columns of the table, and of what a run opens, for the page.

    `root` is the folder from which the folders of runs are named.
    """
    configs = [_configuration(Path(folder)) for folder in data.runs.folder]
    environments = [_environment(Path(folder)) for folder in data.runs.folder]
    runs = data.runs.assign(
        place=[os.path.relpath(folder, root) for folder in data.runs.folder],
        mb_sent_per_worker=data.runs.bytes_sent_per_worker / 1e6,
        **{name: [_option(config, name) for config in configs] for name in _OF_CONFIGURATION},
    )
    runs.loc[runs.shared_gpu, _TIMES] = math.nan
    return {
        "columns": list(_columns(runs)),
        "configuration": columns(configs),
        "environment": columns(environments),
        "summary": columns(list(_summaries(runs))),
        "commands": column(_command(environment) for environment in environments),
        "links": column(_links(value) for value in runs.links),
    }


def _columns(runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for name, header in _HEADERS.items():
        values = pd.Series(runs[name]) if name in runs else pd.Series(dtype=object)
        if bool(values.notna().any()):
            is_word = not pd.api.types.is_numeric_dtype(values.infer_objects())
            yield {"name": name, "header": header, "is_word": is_word, **column(values.tolist())}


def _configuration(folder: Path) -> dict[str, Any]:
    """By the path of each value; what cannot be read has none."""
    try:
        text = read_text(folder / "config.yaml")
        seed = _SEED.search(text)
        own = read_mapping(seed[0]) if seed else {}
        return read_options(_SEED.sub("", text)) | own
    except (OSError, ValueError):
        return {}


def _option(config: Mapping[str, Any], name: str) -> float | None:
    """A number that the algorithm, or a part of it, was given, or the run itself."""
    found = (
        value
        for path, value in config.items()
        if path == name or (path.startswith("algo.") and path.rpartition(".")[2] == name)
    )
    value = next(found, None)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _environment(folder: Path) -> dict[str, Any]:
    """What a run was made on and from, a value for each package."""
    found = load_environment(folder)
    packages = found.pop("packages", None)
    named = packages if isinstance(packages, dict) else {}
    return found | {f"package {name}": version for name, version in named.items()}


def _command(environment: Mapping[str, Any]) -> str | None:
    """What makes this run again: its own words, where it was one of a sweep."""
    words = environment.get("overrides")
    if isinstance(words, list) and words:
        return f"python -m experiments {shlex.join(map(str, words))}"
    command = environment.get("command")
    return command if isinstance(command, str) else None


def _summaries(runs: pd.DataFrame) -> Iterator[dict[str, Any]]:
    names = [name for name in field_types(Summary) if name in runs and name not in _LARGE]
    for values in zip(*(runs[name].tolist() for name in names), strict=True):
        yield dict(zip(names, map(plain, values), strict=True))


def _links(links: Any) -> str | None:
    """What each link was asked to be and was measured to be, as JSON; of many none."""
    if not isinstance(links, Sequence) or isinstance(links, str) or not links:
        return None
    if len(links) > MAX_LINKS:
        return None
    return json.dumps([link for link in links if isinstance(link, dict)], default=str)
