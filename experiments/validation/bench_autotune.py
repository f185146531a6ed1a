"""What autotuning while training saves: `python -m experiments.bench_systems autotune`.

Whole runs of 4 real workers over shaped networks, in turn: by the defaults, tuned, and by every
setting of a grid. Each is judged by its last steps, which a tuned run takes after its search. What
is far behind in a heat of few steps is not measured longer: over a far network a setting can take
fifty times as long as another. It prints medians with their spread and ratios round by round, and
never judges.
"""

import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from bagua_algos.autotune.scope import MOST_STEPS
from bagua_algos.autotune.tuner import NUM_BEFORE
from experiments.runs.load import load_rows
from experiments.runs.summary import read_fields

NETS = ("lan_1g", "slow_tcp", "wan")
MODELS = {
    "cnn": ["model=cnn"],
    "gpt": [
        *("experiment=jane_austen", "schedule=constant", "batch_size=2"),
        *("model.width=256", "model.depth=4", "task.num_examples=3000", "task.num_validation=16"),
    ],
}
"""What is trained; the GPT has 3.3 million parameters, and few examples: a run's evaluations, whose
time does not count, would take longer than its steps.
"""

DEFAULTS, TUNED = "defaults", "tuned"
STREAMS = ((1, False), (8, False), (8, True))
"""And whether they take pieces of large messages."""

LAST_STEPS, LOG_EVERY = 40, 10
HEAT_STEPS = 3
"""After the first, in which connections are made."""
FAR = 2.0
"""Times as slow as the fastest of the heat: a setting of the grid that is more goes out."""
SEARCH_STEPS = NUM_BEFORE + MOST_STEPS + LOG_EVERY
LIMIT_S = 3_600


def grid(*, is_short: bool) -> dict[str, list[str]]:
    """Every setting, by a name, and its overrides."""
    sizes = [1 << 22] if is_short else [1 << 19, 1 << 22, 1 << 25]
    patterns = ("ring", "direct") if is_short else ("ring", "direct", "halving_doubling")
    return {
        f"{size >> 10} kB, {streams} streams{', pieces' * pieces}, {pattern}": [
            *(f"bucket_bytes={size}", f"streams={streams}", f"pattern={pattern}"),
            *(["pieces=true"] if pieces else []),
        ]
        for size, (streams, pieces), pattern in product(sizes, STREAMS, patterns)
        if not (pieces and pattern == "ring")  # gloo's own has none
    }


def cases(*, is_short: bool, last_steps: int = LAST_STEPS) -> dict[str, list[str]]:
    """What is measured, and its overrides; `last_steps` of each run count, a multiple of
    `LOG_EVERY`.
    """
    few = [f"max_steps={last_steps + LOG_EVERY}"]
    tuned = ["autotune=true", f"max_steps={SEARCH_STEPS + last_steps}"]
    of_grid = {name: [*words, *few] for name, words in grid(is_short=is_short).items()}
    return {DEFAULTS: few, TUNED: tuned, **of_grid}


def heats(cases: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Of the settings of a grid, and their overrides: runs of few steps."""
    few = [f"max_steps={1 + HEAT_STEPS}", "log_every=1"]
    return {
        case: [*(word for word in words if not word.startswith("max_steps=")), *few]
        for case, words in cases.items()
        if case not in (DEFAULTS, TUNED)
    }


def goes_on(heat: Mapping[str, float]) -> list[str]:
    """The settings that were not far behind, of all settings' ms a step in a heat."""
    fastest = min(heat.values())
    return [case for case, ms in heat.items() if ms <= FAR * fastest]


def measure(
    overrides: Sequence[str], folder: Path, last_steps: int = LAST_STEPS
) -> dict[str, float]:
    """One run: ms of each of its last steps, the steps that the search took, 0 without one, and
    whether sums had a fixed order then.
    """
    command = [
        *(sys.executable, "-m", "experiments", f"log_every={LOG_EVERY}", *overrides),
        *("algo=allreduce", "workers=4", "eval_every=${max_steps}", f"hydra.run.dir={folder}"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{ended.stdout}{ended.stderr}")
    rows = [row for row in load_rows(folder) if not row.is_evaluation]
    first = next(row for row in rows if row.step == rows[-1].step - last_steps)
    tuning = read_fields(folder)["tuning"]
    windows = tuning["windows"] if tuning else [{"step": 0}]
    return {
        "ms": 1e3 * (rows[-1].time_s - first.time_s) / last_steps,
        "steps": max(0, windows[-1]["step"] - NUM_BEFORE),
        "fixed": float(bool(tuning) and tuning["order"]["is_fixed"]),
    }


def rows(
    measured: Mapping[tuple[str, str], Mapping[str, Sequence[dict[str, float]]]],
    num_far: Mapping[tuple[str, str], int],
) -> dict[str, list[float]]:
    """Of the runs by model, network and case: ms a step, how many steps the search took, which
    order of sums it chose, and ratios to the defaults and to the setting of the grid with the least
    median; `num_far` settings went out in the heat.
    """
    made = {}
    for (model, net), runs in measured.items():
        ms = {case: [run["ms"] for run in own] for case, own in runs.items()}
        others = [case for case in ms if case not in (DEFAULTS, TUNED)]
        num_settings = len(others) + num_far.get((model, net), 0)
        best = min(others, key=lambda case: statistics.median(ms[case]))
        at = f"{model}, {net}"
        made[f"{at}: ms a step, {DEFAULTS}"] = ms[DEFAULTS]
        made[f"{at}: ms a step, {TUNED}"] = ms[TUNED]
        made[f"{at}: ms a step, best of the grid of {num_settings}: {best}"] = ms[best]
        made[f"{at}: steps of the search"] = [run["steps"] for run in runs[TUNED]]
        made[f"{at}: sums in a fixed order, 1: yes"] = [run["fixed"] for run in runs[TUNED]]
        for case in (DEFAULTS, best):
            name = DEFAULTS if case == DEFAULTS else "best of the grid"
            pairs = zip(ms[case], ms[TUNED], strict=True)
            made[f"{at}: {name} / {TUNED}"] = [other / own for other, own in pairs]
    return made
