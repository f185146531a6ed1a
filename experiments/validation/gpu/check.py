"""Runs the parts of `make gpu-check`, each a command with a limit, and writes what they came to."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.runs.summary import UNREADABLE
from host import markdown
from host.command_line.console import Console
from host.environment import environment
from host.gpus import Gpu

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "results" / "gpu"
LIMIT_S = 470.0
"""For all parts together, without those that have their own time."""

_SHORTEST_S = 0.1  # of a part that is worth its start
_ENDING_S = 5.0  # for a part that was told to end
_LINES_KEPT = 200

Figures = dict[str, Any]


class PartFailedError(RuntimeError):
    """A part did what it should not; one sentence."""


@dataclass(frozen=True, kw_only=True)
class CheckPart:
    """One command, and what is read of the folder that it leaves, its output.txt among it.

    `read` raises `PartFailedError` or one of `UNREADABLE` where it is not what it should be. `page`
    shows the figures, beneath the table of all parts, that are too many for a row of it.
    """

    name: str
    command: Callable[[Path], list[str]]
    limit_s: float
    read: Callable[[Path], Figures]
    environment: Callable[[Path], Mapping[str, str]] = field(default=lambda folder: {})
    page: Callable[[Figures], str] = field(default=lambda figures: "")
    has_own_time: bool = False


@dataclass(frozen=True, kw_only=True)
class PartOutcome:
    """`figures` where it passed, else the `reason` and the end of what it printed."""

    seconds: float
    figures: Figures = field(default_factory=dict)
    reason: str | None = None
    printed: list[str] = field(default_factory=list)
    page: str = ""

    def record(self) -> Figures:
        """For JSON."""
        passed = self.reason is None
        told = {"figures": self.figures} if passed else {"reason": self.reason}
        return {"passed": passed, "seconds": self.seconds} | told | {"printed": self.printed}


def run_part(part: CheckPart, folder: Path, left_s: float = LIMIT_S) -> PartOutcome:
    """Run one in `folder`, which is empty, for no longer than `left_s`."""
    limit_s = min(part.limit_s, left_s)
    if limit_s < _SHORTEST_S:
        return PartOutcome(seconds=0.0, reason="no time was left for it")
    started_s = time.monotonic()
    output = folder / "output.txt"
    figures, reason = {}, _run(part, folder, output, limit_s)
    printed = output.read_text(errors="replace").strip().splitlines()
    if reason is not None:
        reason = _of_no_machine(": ".join([reason, *printed[-1:]]))
    else:
        try:
            figures = part.read(folder)
        except (PartFailedError, *UNREADABLE, KeyError, ElementTree.ParseError) as error:
            reason = f"{type(error).__name__}: {error}"
    return PartOutcome(
        seconds=round(time.monotonic() - started_s, 1),
        figures=figures,
        reason=reason,
        printed=[] if reason is None else [_of_no_machine(s) for s in printed[-_LINES_KEPT:]],
        page=part.page(figures) if reason is None else "",
    )


def _of_no_machine(line: str) -> str:
    """The line without this machine's folders: records are read elsewhere."""
    return line.replace(sys.executable, "python").replace(f"{ROOT}{os.sep}", "")


def _run(part: CheckPart, folder: Path, output: Path, limit_s: float) -> str | None:
    """Why it failed, if it did. Nothing that it has started is left."""
    with output.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *part.command(folder)],
            cwd=ROOT,
            env=os.environ | part.environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        code = process.wait(limit_s)
        return f"exit code {code}" if code else None
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # what it has found so far, it may still write
        with suppress(subprocess.TimeoutExpired):
            process.wait(_ENDING_S)
        return f"not done within {limit_s:g} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def check(
    gpu: Gpu,
    parts: Sequence[CheckPart],
    results: Path = RESULTS,
    *,
    selection: Sequence[str] = (),
) -> bool:
    """Run the parts and write what they came to; returns whether all have passed. The names of a
    `selection` of parts are in the files' names, so that no record of all parts is replaced.
    """
    spent_s, made_on = 0.0, environment()
    file = results / _file_name(gpu.name, *selection)
    outcomes: dict[str, PartOutcome] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number, part in enumerate(parts):
            print(f"{part.name}: at most {part.limit_s:g} s", flush=True)
            folder = Path(scratch) / str(number)
            folder.mkdir()
            left_s = part.limit_s if part.has_own_time else LIMIT_S - spent_s
            outcome = outcomes[part.name] = run_part(part, folder, left_s)
            spent_s += 0 if part.has_own_time else outcome.seconds
            _write(file, gpu, made_on, outcomes)
    Console(soft_wrap=True, markup=False, highlight=False).print(_table(gpu, outcomes))
    print(f"{file}.json")
    return all(outcome.reason is None for outcome in outcomes.values())


def _file_name(*words: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", " ".join(words).lower()).strip("-")


def _write(
    file: Path, gpu: Gpu, made_on: Mapping[str, Any], outcomes: Mapping[str, PartOutcome]
) -> None:
    """What there is so far, in `file`.json and `file`.md."""
    record = {
        "device": gpu.name,
        "memory_bytes": gpu.memory_bytes,
        "environment": made_on,
        "parts": {name: outcome.record() for name, outcome in outcomes.items()},
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{file}.json").write_text(json.dumps(record, indent=2) + "\n")
    Path(f"{file}.md").write_text(_table(gpu, outcomes))


def _table(gpu: Gpu, outcomes: Mapping[str, PartOutcome]) -> str:
    rows = []
    for name, outcome in outcomes.items():
        word = "passed" if outcome.reason is None else f"failed: {outcome.reason}"
        figures = ", ".join(f"{key} {_shown(value)}" for key, value in outcome.figures.items())
        rows.append((name, word, f"{outcome.seconds:g}", figures))
    cells = markdown.table(("part", "outcome", "s", "figures"), rows, "llrl")
    pages = [outcome.page for outcome in outcomes.values() if outcome.page]
    return "\n\n".join([f"# {gpu.name}", cells, *pages]) + "\n"


def _shown(value: Any) -> str:
    if isinstance(value, list | dict) and len(str(value)) > 200:
        return f"({len(value)} entries)"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
