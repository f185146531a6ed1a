"""`resume=DIR`: a run that goes on where another one wrote its last checkpoint.

    python -m experiments resume=results/runs/NAME max_steps=500

The overrides of that run hold here too; what shapes its values must not change, so that the rows of
both are one run's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.plan.identity import completed
from experiments.runs.folder_lock import is_held
from experiments.runs.load import load_config, load_rows
from experiments.runs.summary import (
    UNREADABLE,
    Summary,
    read_summary,
    with_conditions_since,
    with_workers_since,
)
from experiments.tasks.target import ACCURACY
from experiments.training.checkpoints.places import complete_steps
from experiments.training.metrics import MetricsRow
from host.errors import UserError

if TYPE_CHECKING:
    from experiments.plan.plan import Plan

FREE = (
    *("net", "cluster", "max_steps", "log_every", "checkpoint_every"),
    *("target_accuracy", "target", "stop_at_target", "resume", "names", "tracker"),
)
"""What may differ: it shapes the times of a run, not its values, or only its end."""

_TIMELESS = {"net.backend", "cluster.timeout_s", "cluster.stacking"}
"""What does not shape times either: how links are made as asked for, a limit, and how equal values
are computed.
"""


def going_on(
    plan: Plan, config: Mapping[str, Any], summary: Summary
) -> tuple[Plan, list[MetricsRow], Summary]:
    """`plan` with the step from which it goes on, the rows up to there of the run that it goes on
    with, and `summary` with how many workers that had, over which network; in its own folder, also
    with what that had gone on with.

    Raises `UserError` if it would be another run, one that is done, or by another metric.
    """
    run, step = plan.resume, plan.resume_step
    if run is None:
        return plan, [], summary
    if step is None:
        step = check_resumable(config, run, 1 if plan.backend.is_simulated else plan.workers)
    with suppress(*UNREADABLE):
        earlier = read_summary(run)
        _check_metric(run, earlier.metric or ACCURACY, plan.target.metric)
        summary = with_workers_since(summary, earlier, step)
        options = tuple(_timing_options(own) for own in (load_config(run), config))
        summary = with_conditions_since(summary, earlier, step, options)
        if run == plan.folder:
            summary = replace(summary, resumed_from=earlier.resumed_from)
    plan = replace(plan, resume_step=step)
    return plan, _rows_before(plan, run, step), summary


def _timing_options(config: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the network and of the cluster that shape times, as JSON keeps them."""
    values = completed(config)
    groups = {group: values.get(group) for group in ("net", "cluster")}
    own = {
        f"{group}.{key}": value
        for group, options in groups.items()
        if isinstance(options, Mapping)
        for key, value in options.items()
        if not str(key).startswith("_") and f"{group}.{key}" not in _TIMELESS
    }
    return json.loads(json.dumps(own, default=str))


def _check_metric(run: Path, earlier: str, metric: str) -> None:
    """Raise `UserError` where the scores of `run` are by another metric than those to come."""
    if earlier != metric:
        raise UserError(
            f"resume={run} was scored by {earlier}, not {metric}: keep the metric of its target; "
            "the target's value may change"
        )


def check_resumable(config: Mapping[str, Any], run: Path, num_processes: int) -> int:
    """The step from which `config` goes on with `run`.

    Raises `UserError` if it would be another run, or one that is done or still at work.
    """
    saved = check_same(config, run)
    if is_held(run):
        raise UserError(f"resume={run} is being run by another process: let it end")
    logged_every = saved.get("log_every")
    if type(logged_every) is not int or logged_every < 1:
        raise UserError(
            f"resume={run} has log_every={logged_every} in its config.yaml, which no run has: put "
            "back the file that the run wrote"
        )
    steps, rows = complete_steps(run, num_processes), load_rows(run)
    step = next((step for step in steps if _is_logged(step, rows, saved)), None)
    if step is None:
        raise UserError(
            f"{run} was killed before it had logged what led to its checkpoint of step {steps[0]}, "
            "and has no earlier one: run it anew"
        )
    if step >= config["max_steps"]:
        raise UserError(
            f"resume={run} is at step {step} already: give max_steps={step + 1} or more"
        )
    return step


def _is_logged(step: int, rows: Sequence[MetricsRow], config: Mapping[str, Any]) -> bool:
    """Whether the record has the last rows before the checkpoint of `step`: workers write that
    while their rows may still be on the way to the launcher. Rows come in their order, so a later
    one does as well, such as of an earlier run, which may have logged at other steps.
    """
    loss = step // config["log_every"] * config["log_every"] or 1
    evaluation = step // config["eval_every"] * config["eval_every"]
    evaluated = max((row.step for row in rows if row.is_evaluation), default=0)
    has_loss = any(row.step >= loss for row in rows if not row.is_evaluation)
    return (has_loss or evaluated > loss) and evaluated >= evaluation


def check_same(config: Mapping[str, Any], run: Path, free: Sequence[str] = FREE) -> dict[str, Any]:
    """The configuration of `run`. Raises `UserError` where `config` is another in what is not
    `free`, or as many workers would average within other nodes.
    """
    saved = completed(load_config(run))
    for key in saved.keys() | config.keys():
        if key not in free and saved.get(key) != config.get(key):
            raise UserError(
                f"resume={run} was run with {key}={saved.get(key)}, not {config.get(key)}: "
                f"only {', '.join(FREE[:-2])} may change"
            )
    before, now = (_node_size(own) for own in (saved, config))
    is_known = before is not None and now is not None  # else the network has no nodes now
    if is_known and before != now and saved.get("workers") == config.get("workers"):
        raise UserError(
            f"resume={run} averaged within nodes of {before} workers, not {now}: give "
            f"net.nodes.size={before}"
        )
    return saved


def _node_size(config: Mapping[str, Any]) -> int | None:
    """How many workers average within a node; None where that makes no difference."""
    algo, net = config.get("algo"), config.get("net")
    if not isinstance(algo, Mapping) or not isinstance(net, Mapping) or not net.get("nodes"):
        return None
    return min(net["nodes"]["size"], config["workers"]) if algo.get("hierarchical") else None


def _rows_before(plan: Plan, run: Path, step: int) -> list[MetricsRow]:
    """The rows of metrics that `run` logged up to `step`, but for an evaluation that `plan` does
    not make: at the end of a shorter run.
    """
    rows = [row for row in load_rows(run) if row.step <= step]
    return [row for row in rows if not row.is_evaluation or plan.evaluates_after(row.step)]
