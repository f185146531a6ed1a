"""The commands of cases: their words, how they go on, and the values that they come to."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from experiments.runs.load import load_rows
from experiments.training.checkpoints.places import newest
from tests.chaos.case import NUM_STEPS, TIMEOUT_S, Case
from tests.experiments.runs.test_resume import values

RUN, RESUMED, SWEEP, REPORT, ADVICE = "run", "resumed", "sweep", "report", "advice"
"""Folders in the place where a command works."""

_APP, _TORCHRUN = "experiments.__main__", "torch.distributed.run"
_SMALL = (
    *("model=mlp", f"max_steps={NUM_STEPS}", "eval_every=10", "log_every=1", "batch_size=32"),
    f"cluster.timeout_s={TIMEOUT_S}",
)
_SWEPT = ("model=mlp", "max_steps=6", "eval_every=3", "log_every=1", "workers=2", "backend=sim")
_SWEPT += ("cluster.stacking=loop",)

Words = tuple[str, ...]


def words(case: Case) -> Words:
    """The command of a case, to be given where it works."""
    match case.kind:
        case "real" | "sim":
            return (_APP, *_of_run(case), f"hydra.run.dir={RUN}")
        case "torchrun":
            agent = ("--standalone", f"--nproc-per-node={case.workers}", "--max-restarts=1")
            own = (*_small(case), "net=none", f"+algo={case.algo}", f"hydra.run.dir={RUN}")
            return (_TORCHRUN, *agent, "-m", "experiments", *own)
        case "sweep":
            swept = (f"algo={case.algo},allreduce", "seed=0,1", f"net={case.net}", *_SWEPT)
            return (_APP, "-m", *swept, f"hydra.sweep.dir={SWEEP}")
        case "advise":
            own = ("model=mlp", "max_steps=10", "workers=2", f"net={case.net}", "--seeds=1")
            algos = f"algo={case.algo},local_sgd"
            return ("experiments.advise.__main__", algos, *own, f"--out={ADVICE}")
    return ("experiments.report.__main__", SWEEP, f"--out={REPORT}")


def preparation(case: Case) -> Words | None:
    """The command that a case needs to have been done before; None: nothing."""
    if case.kind != "report":
        return None
    swept = ("algo=bytegrad,allreduce", "seed=0,1", "net=none", *_SWEPT)
    return (_APP, "-m", *swept, f"hydra.sweep.dir={SWEEP}")


def continuation(case: Case, work: Path) -> Words | None:
    """The command that goes on with what was left in `work`; None: it cannot be gone on with."""
    if case.kind in ("real", "sim"):
        if not (work / RUN / "config.yaml").exists() or newest(work / RUN) is None:
            return None
        calm = ["net.faults=null"] if case.strike == "link down" else []
        return (_APP, f"resume={RUN}", f"hydra.run.dir={RESUMED}", *calm)
    if case.kind == "sweep":
        return (*words(case), "hydra.sweeper.retry_failed=true")
    return words(case)


def undisturbed(case: Case) -> Words | None:
    """The command whose values a case must come to: on the fastest network, which changes none;
    None: it promises none.
    """
    if not case.promises_bits:
        return None
    if case.kind in ("real", "sim"):
        simulated = ("backend=sim", "cluster.stacking=loop") if case.kind == "sim" else ()
        own = (f"algo={case.algo}", *simulated, "net=none", *_small(case))
        return (_APP, *own, f"workers={case.workers}", f"hydra.run.dir={RUN}")
    if case.kind == "torchrun":  # which has the same values as workers of the app's own
        own = (f"algo={case.algo}", "net=none", *_small(case), f"workers={case.workers}")
        return (_APP, *own, f"hydra.run.dir={RUN}")
    if case.kind == "sweep":
        swept = (f"algo={case.algo},allreduce", "seed=0,1", "net=none", *_SWEPT)
        return (_APP, "-m", *swept, f"hydra.sweep.dir={SWEEP}")
    return None


def num_rows(work: Path) -> int:
    """Rows of metrics that are there already."""
    num = 0
    for folder, _, names in os.walk(work):  # which passes over what is gone by now
        if "metrics.jsonl" in names:
            with suppress(FileNotFoundError):
                num += Path(folder, "metrics.jsonl").read_bytes().count(b"\n")
    return num


def is_complete(case: Case, work: Path) -> str | None:
    """What a command that has ended well has not left in `work`; None: all is there."""
    match case.kind:
        case "advise":
            return None if (work / ADVICE / "advice.md").exists() else "no advice.md"
        case "report":
            missing = {"report.ipynb", "report.html"} - {f.name for f in (work / REPORT).iterdir()}
            return f"no {missing}" if missing else None
    folders = [run.parent for run in work.rglob("config.yaml")]
    expected = 4 if case.kind == "sweep" and case.algo != "allreduce" else 1
    if case.kind == "sweep" and len(folders) < expected:
        return f"{len(folders)} runs of {expected}"
    return next((f"{folder.name}: {why}" for folder in folders if (why := _lacks(folder))), None)


def _lacks(run: Path) -> str | None:
    summary = json.loads((run / "summary.json").read_text())
    if summary["status"] == "diverged":
        return None
    if summary["status"] != "completed":
        return f"its record says {summary['status']}: {summary['reason']}"
    steps = [row.step for row in load_rows(run) if not row.is_evaluation]
    if steps != [*range(1, summary["steps"] + 1)]:
        return f"its rows are of the steps {steps}"
    return None if summary["final_accuracy"] is not None else "no final accuracy"


def digests(case: Case, work: Path) -> dict[str, str]:
    """The values that the runs in `work` have come to, each by its algorithm and seed. Those of
    torchrun's workers are losses alone: they average over the network for an evaluation, which
    adds up in another order.
    """
    losses_alone = case.kind == "torchrun"
    return dict(_digest(config.parent, losses_alone) for config in work.rglob("config.yaml"))


def _digest(run: Path, losses_alone: bool) -> tuple[str, str]:
    summary = json.loads((run / "summary.json").read_text())
    rows = [
        values(asdict(row)) for row in load_rows(run) if not (losses_alone and row.is_evaluation)
    ]
    final = [summary["final_accuracy"], summary["final_loss"], summary["spread"]]
    text = json.dumps([rows, [] if losses_alone else final, summary["status"]])
    return f"{summary['algo']} {summary['seed']}", hashlib.sha256(text.encode()).hexdigest()[:16]


def _of_run(case: Case) -> Iterator[str]:
    yield from (f"algo={case.algo}", f"net={case.net}", f"workers={case.workers}", *_small(case))
    if case.kind == "sim":
        yield from ("backend=sim", "cluster.stacking=loop")
    elif case.net == "none":
        yield "net.backend=switch"
    if case.strike == "link down":
        yield f"net.faults=[{{worker: 1, at_s: {case.at_s / 2:.2f}, for_s: {case.for_s:.2f}}}]"


def _small(case: Case) -> Words:
    return (*_SMALL, *(["checkpoint_every=4"] if case.with_checkpoints else []))
