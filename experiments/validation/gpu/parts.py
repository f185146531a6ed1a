"""The parts of `make gpu-check`, and what is read of their output."""

import json
import os
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from experiments.real.nccl import connections, log_environment, read_log
from experiments.runs.summary import read_fields
from experiments.training.device_trace import read_device_trace
from experiments.validation.gpu.check import CheckPart, Figures, PartFailedError
from experiments.validation.nccl.transfers import page, read_transfers
from host import markdown
from host.errors import UserError

TESTS = (
    *("tests/kernels", "tests/bagua_algos/engine", "tests/bagua_algos/fused"),
    *("tests/bagua_algos/scripts", "tests/experiments/training"),
)
"""The folders with tests that need a GPU: others may need what a GPU's host lacks."""

_SIDE_BY_SIDE = (
    ("-n", "4", "--dist", "loadfile", "-p", "no:benchmark") if find_spec("xdist") else ()
)
"""pytest-benchmark, which is nobody's wish here, warns of xdist, and warnings are errors."""

_SHARE_OF_ROUNDS = 0.83  # of a part's limit: its start, and a round longer than the others


def read_versions(folder: Path) -> Figures:
    """What the part printed, as JSON in a line of its own, beside what timeit says."""
    lines = (folder / "output.txt").read_text().splitlines()
    for line in lines:
        if line.startswith("{"):
            return json.loads(line)
    raise PartFailedError(f"no line of the output is JSON, but {lines}")


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


def _kernels_page(figures: Figures) -> str:
    results = figures["results"]
    columns = [name for name, value in max(results, key=len).items() if isinstance(value, Mapping)]
    rows = [
        (f"{one['kernel']}, {one['mbytes']} MiB {one['dtype']}", *_medians(one, columns))
        for one in results
    ]
    headings = ("kernel, medians", *columns)
    return markdown.table(headings, rows, "l" + "r" * len(columns))


def _medians(result: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    return [f"{result[name]['median']:.4g}" if name in result else "" for name in columns]


def read_optimizers(folder: Path) -> Figures:
    """Medians of the bench's table, by its rows."""
    rows = re.findall(r"│ (\S.*?) +│ +([\d.e+-]+) │", (folder / "output.txt").read_text())
    if not rows:
        raise PartFailedError("the bench printed no row")
    return {"medians": {name: float(median) for name, median in rows}}


def _optimizers_page(figures: Figures) -> str:
    rows = [(name, f"{median:g}") for name, median in figures["medians"].items()]
    return markdown.table(("steps of a fused optimizer", "median"), rows, "lr")


def read_plugin(folder: Path) -> Figures:
    """As `read_shared`, where bagua_net takes the place of NCCL's own sockets."""
    return read_shared(folder, net_plugin="bagua")


def read_shared(folder: Path, net_plugin: str | None = None) -> Figures:
    """What two workers on one GPU sent, by which transport, and what their trace shows.

    No time is among it: the workers take turns on the GPU.
    """
    summary = read_fields(folder)
    if not summary["shared_gpu"]:
        raise PartFailedError("the record does not say that the workers shared a GPU")
    log = read_log(folder)
    try:
        used = connections(log, net_plugin)
    except ValueError as error:
        raise PartFailedError(str(error)) from error
    steps = [read_device_trace(file) for file in sorted(folder.glob("trace.*.json"))]
    waits = sum((Counter(worker.host_waits) for worker in steps), Counter[str]())
    if waits:
        raise PartFailedError(f"the host waited for the GPU within steps: {dict(waits)}")
    version = re.search(r"NCCL version (\S+)", log)
    return _of(summary, "steps", "final_accuracy", "bytes_sent_per_worker", "shared_gpu") | {
        "nccl": version and version[1],
        "connections": used,
        "host_waits_in_steps": 0,
        "steps_traced": [worker.num_steps for worker in steps],
        "hidden_share_of_communication": [
            worker.communication_s and worker.hidden_s / worker.communication_s for worker in steps
        ],
    }


def read_nccl(folder: Path) -> Figures:
    """All-reduces by several transports, as they were kept."""
    return read_transfers(json.loads((folder / "nccl.json").read_text())).record()


def _nccl_page(figures: Figures) -> str:
    return page(read_transfers(figures))


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
    return {"CUDA_VISIBLE_DEVICES": first, **log_environment(folder)}


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


def _over(net: str, limit_s: float) -> CheckPart:
    """NCCL's own sockets beside bagua_net over a network: the rounds that there is time for."""
    budget_s = f"{_SHARE_OF_ROUNDS * limit_s:g}"
    return CheckPart(
        name=f"NCCL over {net}",
        command=lambda folder: [
            *("experiments.bench_nccl", f"net={net}", "--budget", budget_s),
            *("--json", str(folder / "nccl.json")),
        ],
        limit_s=limit_s,
        read=read_nccl,
        page=_nccl_page,
        has_own_time=True,
    )


PARTS = (
    CheckPart(
        name="versions",
        command=lambda folder: ["timeit", "-n1", "-r1", _VERSIONS],
        limit_s=60,
        read=read_versions,
    ),
    CheckPart(
        name="tests",
        command=lambda folder: [
            *("pytest", "-q", "--tb=line", "-m", "gpu", f"--junitxml={folder / 'tests.xml'}"),
            *_SIDE_BY_SIDE,
            *TESTS,
        ],
        limit_s=240,
        read=read_tests,
    ),
    CheckPart(
        name="kernels",
        command=lambda folder: [
            *("kernels.bench", "--device", "cuda", "--json", str(folder / "kernels.json")),
        ],
        limit_s=120,
        read=read_kernels,
        page=_kernels_page,
    ),
    CheckPart(
        name="fused optimizer",
        command=lambda folder: [
            *("experiments.bench_systems", "optimizer", "--device", "cuda", "--repeats", "2"),
        ],
        limit_s=60,
        read=read_optimizers,
        page=_optimizers_page,
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
        page=_kernels_page,
    ),
    _over("lan_1g", limit_s=240),
    _over("lossy", limit_s=580),
    _over("wan", limit_s=580),
)


def select(names: Sequence[str]) -> tuple[CheckPart, ...]:
    """The parts of these names; all for none. Raises `UserError` for a name that no part has."""
    known = [part.name for part in PARTS]
    if unknown := [name for name in names if name not in known]:
        raise UserError(f"gpu-check has no part {unknown[0]!r}: choose of {', '.join(known)}")
    return tuple(part for part in PARTS if part.name in names or not names)
