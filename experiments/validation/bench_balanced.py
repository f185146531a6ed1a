"""What balanced batches save: `python -m experiments.bench_systems balanced`.

Whole runs of 4 real workers on examples of unequal length, in turn: shuffled batches as they are by
default, all padded to the longest example of the data set; shuffled batches that are cut to their
own longest; balanced ones. Each round has a seed of its own. It prints medians with their spread
and ratios round by round, and never judges.
"""

import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.runs.summary import read_fields

WHOLE, CUT, BALANCED = "shuffled", "shuffled, cut", "balanced"
CASES = {
    WHOLE: ["data.sampler=shuffled"],
    CUT: ["data.sampler=shuffled", "data.sampler.crop=true"],
    BALANCED: ["data.sampler=balanced"],
}
"""What is measured, and its overrides."""


def measure(overrides: Sequence[str], folder: Path) -> dict[str, float]:
    """One run: ms a step, and of them waiting; seconds to the target, inf for a miss; accuracy."""
    command = [
        *(sys.executable, "-m", "experiments", "algo=allreduce", "net=none", "workers=4"),
        *(*overrides, f"hydra.run.dir={folder}"),
    ]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{ended.stdout}")
    summary: dict[str, Any] = read_fields(folder)
    reached_s = summary["time_to_accuracy_s"]
    return {
        "ms a step": 1e3 / summary["steps_per_s"],
        "ms a step waiting": 1e3 * summary["exposed_communication_s"] / summary["steps"],
        "s to accuracy": math.inf if reached_s is None else reached_s,
        "test accuracy": summary["final_accuracy"],
    }


def rows(measured: dict[str, list[dict[str, float]]]) -> dict[str, list[float]]:
    """The figures of all rounds, by the name of a row."""
    found = {
        f"{figure}, {case}": [run[figure] for run in runs]
        for figure in measured[CUT][0]
        for case, runs in measured.items()
    }
    for case in (WHOLE, CUT):
        for figure in ("ms a step", "s to accuracy"):
            pairs = zip(measured[case], measured[BALANCED], strict=True)
            found[f"{figure}, {case} / {BALANCED}, round by round"] = [
                other[figure] / own[figure] for other, own in pairs
            ]
    return found
