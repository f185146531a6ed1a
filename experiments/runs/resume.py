"""`resume=DIR`: a run that goes on where another one wrote its last checkpoint.

    python -m experiments resume=results/runs/NAME max_steps=500

The overrides of that run hold here too; what shapes its values must not change, so that the rows of
both are one run's.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from experiments.plan.identity import completed
from experiments.runs.load import load_rows
from experiments.training.checkpoint import Checkpoints
from experiments.training.metrics import MetricsRow
from host.errors import UserError

FREE = (
    *("net", "cluster", "max_steps", "log_every", "checkpoint_every"),
    *("target_accuracy", "target", "stop_at_target", "resume", "names", "tracker"),
)
"""What may differ: it shapes the times of a run, not its values, or only its end."""


def check_resumable(config: Mapping[str, Any], run: Path, num_processes: int) -> int:
    """The step from which `config` goes on with `run`.

    Raises `UserError` if it would be another run, or one that is done.
    """
    step = Checkpoints(run, 0, num_processes).latest()
    check_same(config, run)
    if step >= config["max_steps"]:
        raise UserError(
            f"resume={run} is at step {step} already: give max_steps={step + 1} or more"
        )
    return step


def check_same(config: Mapping[str, Any], run: Path, free: Sequence[str] = FREE) -> None:
    """Raise `UserError` where `config` is not that of `run` in what is not `free`."""
    saved = completed(yaml.safe_load((run / "config.yaml").read_text()))
    for key in saved.keys() | config.keys():
        if key not in free and saved.get(key) != config.get(key):
            raise UserError(
                f"resume={run} was run with {key}={saved.get(key)}, not {config.get(key)}: "
                f"only {', '.join(FREE[:-2])} may change"
            )


def rows_until(run: Path, step: int) -> list[MetricsRow]:
    """The rows of metrics that `run` logged up to `step`."""
    return [row for row in load_rows(run) if row.step <= step]
