"""The parts of `make gpu-check`, each a command with a limit, and what is read of its output."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.runs.summary import UNREADABLE, read_fields
from experiments.training.device_trace import read_device_trace
from host import markdown
from host.environment import environment
from host.gpus import Gpu

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "results" / "gpu"
LIMIT_S = 470.0
"""For all parts together."""
SOCKETS = "NET/Socket"
"""NCCL's word for a connection through the worker's own network namespace."""
PLUGIN = "NET/bagua"
"""And for one through bagua_net."""

_SHORTEST_S = 0.1  # of a part that is worth its start
_ENDING_S = 5.0  # for a part that was told to end
_LINES_KEPT = 40

Figures = dict[str, Any]


class PartFailedError(RuntimeError):
    """A part did what it should not; one sentence."""


@dataclass(frozen=True, kw_only=True)
class CheckPart:
    """One command, and what is read of the folder that it leaves, its output.txt among it.

    `read` raises `PartFailedError` or one of `UNREADABLE` where it is not what it should be.
    """

    name: str
    command: Callable[[Path], list[str]]
    limit_s: float
    read: Callable[[Path], Figures]
    environment: Callable[[Path], Mapping[str, str]] = field(default=lambda folder: {})


@dataclass(frozen=True, kw_only=True)
class PartOutcome:
    """`figures` where it passed, else the `reason` and the end of what it printed."""

    seconds: float
    figures: Figures = field(default_factory=dict)
    reason: str | None = None
    printed: list[str] = field(default_factory=list)

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
        reason = ": ".join([reason, *printed[-1:]])
    else:
        try:
            figures = part.read(folder)
        except (PartFailedError, *UNREADABLE, KeyError, ElementTree.ParseError) as error:
            reason = f"{type(error).__name__}: {error}"
    return PartOutcome(
        seconds=round(time.monotonic() - started_s, 1),
        figures=figures,
        reason=reason,
        printed=[] if reason is None else printed[-_LINES_KEPT:],
    )


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


def read_versions(folder: Path) -> Figures:
    """What the part printed, as JSON in its last line."""
    return json.loads((folder / "output.txt").read_text().strip().splitlines()[-1])


def read_tests(folder: Path) -> Figures:
    """How many tests passed and were skipped."""
    suites = ElementTree.parse(folder / "tests.xml").getroot().iter("testsuite")
    counts = Counter[str]()
    for suite in suites:
        counts.update({name: int(suite.get(name, "0")) for name in ("tests", "skipped")})
    if not counts["tests"] - counts["skipped"]:
        raise PartFailedError(f"no test ran, of {counts['tests']} that are marked gpu")
    return {"passed": counts["tests"] - counts["skipped"], "skipped": counts["skipped"]}


def read_kernels(folder: Path) -> Figures:
    """The results of the bench, as it wrote them."""
    return {"results": json.loads((folder / "kernels.json").read_text())}


def read_plugin(folder: Path) -> Figures:
    """As `read_shared`, where bagua_net takes the place of NCCL's own sockets."""
    log = "\n".join(file.read_text() for file in folder.glob("nccl.*.log"))
    if "Assigned NET plugin bagua" not in log:
        raise PartFailedError("NCCL's log does not say that it assigned the plugin")
    return read_shared(folder, PLUGIN)


def read_shared(folder: Path, transport: str = SOCKETS) -> Figures:
    """What two workers on one GPU sent, by which transport, and what their trace shows.

    No time is among it: the workers take turns on the GPU.
    """
    summary = read_fields(folder)
    if not summary["shared_gpu"]:
        raise PartFailedError("the record does not say that the workers shared a GPU")
    log = "\n".join(file.read_text() for file in folder.glob("nccl.*.log"))
    transports = Counter(re.findall(r"Channel .* via (\w+(?:/\w+)?)", log))
    if set(transports) != {transport}:
        raise PartFailedError(f"NCCL used {dict(transports)}, not {transport} alone")
    steps = [read_device_trace(file) for file in sorted(folder.glob("trace.*.json"))]
    waits = sum((Counter(worker.host_waits) for worker in steps), Counter[str]())
    if waits:
        raise PartFailedError(f"the host waited for the GPU within steps: {dict(waits)}")
    version = re.search(r"NCCL version (\S+)", log)
    return _of(summary, "steps", "final_accuracy", "bytes_sent_per_worker", "shared_gpu") | {
        "nccl": version and version[1],
        "connections": dict(transports),
        "host_waits_in_steps": 0,
        "steps_traced": [worker.num_steps for worker in steps],
        "hidden_share_of_communication": [
            worker.communication_s and worker.hidden_s / worker.communication_s for worker in steps
        ],
    }


def read_stacked(folder: Path) -> Figures:
    """What simulated workers came to, and how long all of it took."""
    summary = read_fields(folder)
    return _of(summary, "workers", "steps", "final_accuracy", "first_step_s", "duration_s")


def _of(summary: Mapping[str, Any], *names: str) -> Figures:
    return {name: summary[name] for name in names}


def _experiment(*words: str) -> Callable[[Path], list[str]]:
    return lambda folder: ["experiments", *words, f"hydra.run.dir={folder}"]


_SHARED = (
    *("algo=bytegrad", "net=slow_tcp", "backend=nccl", "workers=2", "trace=true"),
    *("max_steps=20", "eval_every=20", "bucket_bytes=262144"),
)


def _one_gpu(folder: Path) -> dict[str, str]:
    first, *_ = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
    return {
        "CUDA_VISIBLE_DEVICES": first,
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": str(folder / "nccl.%p.log"),
    }


_VERSIONS = """
import json, subprocess
import torch
asked = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
versions = {"driver": subprocess.run(asked, capture_output=True, text=True).stdout.strip()}
versions |= {"cuda": torch.version.cuda, "nccl": list(torch.cuda.nccl.version())}
versions |= {"capability": list(torch.cuda.get_device_capability())}
try:
    import cupy
    versions |= {"cupy": cupy.__version__, "nvrtc": list(cupy.cuda.nvrtc.getVersion())}
except Exception as error:
    versions |= {"cupy": f"{type(error).__name__}: {error}"}
print(json.dumps(versions))
"""

PARTS = (
    CheckPart(
        name="versions",
        command=lambda folder: ["timeit", "-n1", "-r1", _VERSIONS],
        limit_s=60,
        read=read_versions,
    ),
    CheckPart(
        name="tests",
        command=lambda folder: ["pytest", "-q", "-m", "gpu", f"--junitxml={folder / 'tests.xml'}"],
        limit_s=120,
        read=read_tests,
    ),
    CheckPart(
        name="kernels",
        command=lambda folder: [
            *("kernels.bench", "--device", "cuda", "--json", str(folder / "kernels.json")),
        ],
        limit_s=120,
        read=read_kernels,
    ),
    CheckPart(
        name="shared GPU",
        command=_experiment(*_SHARED),
        limit_s=130,
        read=read_shared,
        environment=_one_gpu,
    ),
    CheckPart(
        name="net plugin",
        command=_experiment(*_SHARED, "cluster.net_plugin=bagua"),
        limit_s=130,
        read=read_plugin,
        environment=_one_gpu,
    ),
    CheckPart(
        name="stacked",
        command=_experiment(
            *("algo=bytegrad", "net=wan", "backend=sim", "device=cuda", "workers=32"),
            *("max_steps=50", "eval_every=50", "model=mlp"),
        ),
        limit_s=80,
        read=read_stacked,
    ),
    CheckPart(
        name="compiled",
        command=lambda folder: [
            *("kernels.bench", "--device", "cuda", "--mbytes", "64", "--compile"),
            *("--json", str(folder / "kernels.json")),
        ],
        limit_s=120,
        read=read_kernels,
    ),
)


def check(gpu: Gpu, parts: tuple[CheckPart, ...] = PARTS, results: Path = RESULTS) -> bool:
    """Run all parts and write what they came to; returns whether all have passed."""
    started_s, made_on = time.monotonic(), environment()
    outcomes: dict[str, PartOutcome] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for number, part in enumerate(parts):
            print(f"{part.name}: at most {part.limit_s:g} s", flush=True)
            folder = Path(scratch) / str(number)
            folder.mkdir()
            left_s = LIMIT_S - (time.monotonic() - started_s)
            outcomes[part.name] = run_part(part, folder, left_s)
            _write(results, gpu, made_on, outcomes)
    Console(soft_wrap=True, markup=False, highlight=False).print(_table(gpu, outcomes))
    print(results / f"{_file_name(gpu)}.json")
    return all(outcome.reason is None for outcome in outcomes.values())


def _file_name(gpu: Gpu) -> str:
    return re.sub(r"[^a-z0-9]+", "-", gpu.name.lower()).strip("-")


def _write(
    results: Path, gpu: Gpu, made_on: Mapping[str, Any], outcomes: Mapping[str, PartOutcome]
) -> None:
    """What there is so far."""
    record = {
        "device": gpu.name,
        "memory_bytes": gpu.memory_bytes,
        "environment": made_on,
        "parts": {name: outcome.record() for name, outcome in outcomes.items()},
    }
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{_file_name(gpu)}.json").write_text(json.dumps(record, indent=2) + "\n")
    (results / f"{_file_name(gpu)}.md").write_text(_table(gpu, outcomes))


def _table(gpu: Gpu, outcomes: Mapping[str, PartOutcome]) -> str:
    rows = []
    for name, outcome in outcomes.items():
        word = "passed" if outcome.reason is None else f"failed: {outcome.reason}"
        figures = ", ".join(f"{key} {_shown(value)}" for key, value in outcome.figures.items())
        rows.append((name, word, f"{outcome.seconds:g}", figures))
    cells = markdown.table(("part", "outcome", "s", "figures"), rows, "llrl")
    return f"# {gpu.name}\n\n{cells}\n"


def _shown(value: Any) -> str:
    if isinstance(value, list | dict) and len(str(value)) > 200:
        return f"({len(value)} entries)"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
