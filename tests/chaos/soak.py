"""Is what lives long flat? Sweeps over all algorithms follow one another in each of two processes,
on real workers and on simulated ones. After every run the memory, descriptors and threads of that
process are noted, and its temporary files.

    python -m tests.chaos.soak --minutes 120

Prints what they were at first and at last, how they grow, and how long the last runs took beside
the first ones of the same algorithms.
"""

import argparse
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from host import conf, markdown
from host.environment import environment
from host.processes import die_with_parent

QUICK = ("net=none", "model=mlp", "workers=2", "max_steps=20", "eval_every=10", "log_every=5")
FEWEST = 12
"""Runs of a sweep, below which nothing is said."""

WARM_UP = 0.25
"""The part of the runs in which a process still imports and caches."""

MEASURES = ("memory (MB)", "descriptors", "threads", "temporary files")


@dataclass
class Sweep:
    """One of the sweeps as seen from outside.

    Args:
        name: "real" or "simulated".
        folder: of its records.
        process: it.
        samples: a row of `MEASURES` after each run.
    """

    name: str
    folder: Path
    process: subprocess.Popen[bytes]
    samples: list[list[float]]

    def sample(self) -> None:
        """Note what it holds, once for every run that has ended since."""
        if self.process.poll() is None and len(_ends(self.folder)) > len(self.samples):
            held = _held(self.process.pid, self.folder.parent / "tmp")
            if held is not None:
                self.samples.append(held)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak")
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--sweep", nargs="+", metavar="WORD", help="be one of the sweeps")
    options = parser.parse_args()
    minutes = options.minutes
    if options.sweep:
        sweep_again_and_again(*options.sweep)
    algos = sorted(conf.files("algo"))
    simulated = [algo for algo in algos if not algo.startswith("torch_ddp")]
    with tempfile.TemporaryDirectory(prefix="soak-") as place:
        sweeps = [
            _started(Path(place, "real"), "real", algos, "gloo"),
            _started(Path(place, "simulated"), "simulated", simulated, "sim"),
        ]
        try:
            _watch(sweeps, 60 * minutes)
        finally:
            for sweep in sweeps:
                sweep.process.send_signal(signal.SIGTERM)
                sweep.process.wait()
        host = environment()
        print(f"{minutes:g} minutes, {host['cores']} cores ({host['cpu']})")
        short = [sweep for sweep in sweeps if len(sweep.samples) < FEWEST]
        for sweep in short:
            said = (sweep.folder.parent / "output").read_text()[-1_000:]
            print(f"{sweep.name}: only {len(sweep.samples)} runs have ended; it printed {said}")
        if not short:
            print(_table(sweeps))
        for sweep in sweeps:
            print(_speed(sweep))
            print(_failures(sweep))


def _started(place: Path, name: str, algos: list[str], backend: str) -> Sweep:
    (place / "tmp").mkdir(parents=True)
    with (place / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.soak", "--sweep", str(place), backend, *algos],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(place / "tmp")},
        )
    return Sweep(name, place / "runs", process, [])


def sweep_again_and_again(place: str, backend: str, *algos: str) -> None:
    """Until it is ended: sweeps of one seed each over `algos`, all in this process."""
    die_with_parent(os.getppid())
    from experiments.__main__ import main
    from experiments.runs.study import RunsFailed

    for seed in itertools.count():
        words = [f"seed={seed}", f"algo={','.join(algos)}", f"backend={backend}", *QUICK]
        sys.argv = ["experiments", "-m", *words, f"hydra.sweep.dir={place}/runs"]
        with suppress(RunsFailed):  # others may load the host; the end says how many
            main()


def _watch(sweeps: list[Sweep], seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s and any(sweep.process.poll() is None for sweep in sweeps):
        for sweep in sweeps:
            sweep.sample()
        time.sleep(0.5)


def _held(pid: int, temporary: Path) -> list[float] | None:
    """A row of `MEASURES`; None where the process has ended meanwhile."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return None
    kilobytes, threads = (int(status.partition(k)[2].split()[0]) for k in ("VmRSS:", "Threads:"))
    return [kilobytes / 1e3, descriptors, threads, len(list(temporary.rglob("*")))]


def _ends(folder: Path) -> list[Path]:
    """The summaries of runs that have ended and whose metrics are written."""
    files = folder.glob("*/summary.json")
    return [file for file in files if file.with_name("metrics.parquet").exists()]


def _ended(folder: Path) -> list[dict]:
    """What these summaries say, in the order of their ends."""
    files = sorted(_ends(folder), key=lambda file: file.stat().st_mtime)
    return [json.loads(file.read_text()) for file in files]


def _table(sweeps: list[Sweep]) -> str:
    """A row for each measure of each sweep: medians of a quarter each, and the slope after the
    warm-up.
    """
    rows = []
    for sweep in sweeps:
        samples = np.array(sweep.samples)
        late = samples[round(WARM_UP * len(samples)) :]
        quarter = max(1, len(late) // 3)
        slopes = np.polyfit(np.arange(len(late)), late, 1)[0] * 100
        for measure, first, last, slope in zip(
            MEASURES, *np.median([late[:quarter], late[-quarter:]], 1), slopes, strict=True
        ):
            cells = [f"{first:.1f}", f"{last:.1f}", f"{slope:+.2f}"]
            rows.append([sweep.name, str(len(samples)), measure, *cells])
    header = ["workers", "runs", "measure", "first third", "last third", "each 100 runs"]
    return markdown.table(header, rows)


def _speed(sweep: Sweep) -> str:
    """The last run of each algorithm beside its second one: the first one compiles kernels."""
    by_algo: dict[str, list[float]] = {}
    for summary in _ended(sweep.folder):
        by_algo.setdefault(summary["algo"], []).append(summary["duration_s"])
    ratios = [took_s[-1] / took_s[1] for took_s in by_algo.values() if len(took_s) > 2]
    if not ratios:
        return f"{sweep.name}: no algorithm ran three times"
    low, middle, high = np.quantile(ratios, [0.1, 0.5, 0.9])
    return (
        f"{sweep.name}: the last run of each of {len(ratios)} algorithms took {middle:.2f} of its "
        f"second ({low:.2f} to {high:.2f} for 8 of 10)"
    )


def _failures(sweep: Sweep) -> str:
    """How many runs were not completed, and why."""
    ended = _ended(sweep.folder)
    reasons = [summary["reason"] for summary in ended if summary["status"] != "completed"]
    why = "".join(f"\n    {count} times: {why}" for why, count in Counter(reasons).items())
    return f"{sweep.name}: {len(reasons)} of {len(ended)} runs were not completed{why}"


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of what tidies up
    main()
