"""What a run came to: the fields of its summary.json."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from experiments.runs.fields import decoded, field_types, typed
from experiments.tasks.target import ACCURACY, Target
from host.strangers.regular import read_text
from host.words import counted, listed

NOT_ENDED = "the run has not ended: it is still running, or its launcher was killed"
CTRL_C, SIGTERM = "stopped by Ctrl-C (SIGINT)", "stopped by SIGTERM"
DISK = "stopped by the disk: "
ENDED_EARLY = "ended early"
HAVE_TIMES = ("completed", ENDED_EARLY)
"""The status of a run that may have reached its target."""
_STATUSES = (*HAVE_TIMES, "diverged", "failed")
_INTERRUPTIONS = (NOT_ENDED, CTRL_C, SIGTERM, DISK)
"""How reasons of a failed run begin of which no cause lies in the run."""

_NAMES = ("algo", "net", "task", "model", "optim", "backend")
_ACCURACIES = ("final_accuracy", "validation_accuracy")
_LEAST = {
    **dict.fromkeys(("workers", "streams", "hosts"), 1),
    "lr_scale": math.ulp(0.0),  # more than 0
    **dict.fromkeys(
        ("seed", "steps", "steps_per_s", "bytes_sent_per_worker", "restarts", "spread"), 0
    ),
    **dict.fromkeys(("time_to_accuracy_s", "first_step_s", "duration_s", "data_wait_s"), 0),
    **dict.fromkeys(("exposed_communication_s", "achieved_rtt_ms"), 0),
    **dict.fromkeys(("asked_rate_mbit", "achieved_rate_mbit", *_ACCURACIES), 0),
}
"""What no run has less of."""
_MOST: dict[str, float] = dict.fromkeys(_ACCURACIES, 1.0)
"""What no run has more of."""

UNREADABLE = (OSError, ValueError, TypeError, OverflowError, RecursionError)
"""What reading a summary raises where there is none of a run."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A run's row in every table. The fields are those of summary.json, in this order; None:
    unknown, or the run has no such thing.
    """

    algo: str | None = None
    """The name of the algorithm's configuration; the next five are names of configurations, too."""
    net: str | None = None
    task: str | None = None
    model: str | None = None
    optim: str | None = None
    backend: str | None = None
    """"sim" for simulated workers."""
    gpu: str | None = None
    """The GPU's model; None on CPUs."""
    shared_gpu: bool | None = None
    """Whether workers took turns on one GPU: then how long they took is no claim."""
    workers: int | None = None
    seed: int | None = None
    steps: int | None = None
    steps_per_s: float | None = None
    time_to_accuracy_s: float | None = None
    """To the first evaluation at the target, whatever its metric is; None where it was missed, or
    not reached before the run was ended. Reports draw a line from the evaluation before it.
    """
    target_accuracy: float | None = None
    """None: there is no target, or one by another metric, which is in the last fields."""
    lr_scale: float | None = None
    final_accuracy: float | None = None
    """On the test set, 0 to 1."""
    final_loss: float | None = None
    """On the test set, in nats a label."""
    final_bits_per_character: float | None = None
    """final_loss / ln 2, of bytes bits a byte; None where labels are neither."""
    validation_accuracy: float | None = None
    validation_loss: float | None = None
    bytes_sent_per_worker: float | None = None
    exposed_communication_s: float | None = None
    """The mean of the workers."""
    data_wait_s: float | None = None
    """What training waited for examples, which no network delays: the mean of the workers; None:
    they were simulated.
    """
    achieved_rate_mbit: float | None = None
    """The median of the links; None where not measured."""
    asked_rate_mbit: float | None = None
    """The network's `rate_mbit`: of links to which nothing else of `net` gives a rate of their own.
    None: no limit.
    """
    status: str | None = None
    """"completed", "diverged", "failed", or "ended early" by the search that it is a trial of."""
    reason: str | None = None
    """Why it failed, diverged or was ended, in a sentence."""
    evaluated_model: str | None = None
    spread: float | None = None
    """How far the workers' weights are from the evaluated model's, at the end."""
    resumed_from: str | None = None
    """The folder of the run that it goes on with."""
    replayed_from: str | None = None
    """The run of its study whose values it has; its own are times and bytes."""
    restarts: int | None = None
    """How often it went on in its own folder; what was lost is not on its clock."""
    first_step_s: float | None = None
    """From its start to its first row of metrics."""
    duration_s: float | None = None
    net_backend: str | None = None
    """What shaped the links, such as "tbf"; None: they were simulated, or the machines' own."""
    congestion_control: str | None = None
    tcp: dict[str, Any] | None = None
    """The TCP settings of the workers' namespaces."""
    links: list[dict[str, Any]] | None = None
    """What each link was asked to be, and was measured to be."""
    streams: int | None = None
    """Connections between each two workers, over which large operations were striped."""
    stream_trial: dict[str, Any] | None = None
    """How `streams` was measured: the fields of `StreamTrial`; None: it was not."""
    pieces: bool | None = None
    """Whether streams took pieces of large messages as they became free; None: equal parts."""
    halving_doubling_bytes: int | None = None
    """Up to which size all-reduces went by halving and doubling."""
    pattern_trial: dict[str, Any] | None = None
    """How that was measured: the fields of `PatternTrial`; None: it was not."""
    tuning: dict[str, Any] | None = None
    """What autotuning came to: the `settings`, what was `left_out`, and `windows`, a row for each
    window of steps; None: there was none.
    """
    stacking: dict[str, Any] | None = None
    """How simulated workers were computed: the `way`, `threads`, and what was measured for it."""
    net_plugin: str | None = None
    """Through which NCCL was told to communicate; None: its own sockets, or no NCCL."""
    achieved_rtt_ms: float | None = None
    """The median of the links."""
    started_by: str | None = None
    """"torchrun" or "srun"; None: the launcher of this program."""
    hosts: int | None = None
    """The machines that the workers were on; None: this one."""
    metric: str | None = None
    """Of the target; None: accuracy, which has fields of its own, as these have of another one."""
    target_score: float | None = None
    final_score: float | None = None
    """On the test set."""
    validation_score: float | None = None
    final_own_score: float | None = None
    """On the test set, by the target's metric, of the models that the workers have themselves;
    None where they agree. `final_accuracy` and `final_score` are of the mean of these models.
    """
    own_score_at_target: float | None = None
    """The same on the validation set, when the mean of the models reached the target."""
    workers_over_time: list[dict[str, int]] | None = None
    """How many workers there were `after_step`, in the order of steps, where their number changed;
    `workers` is the last. None: it never did.
    """
    shares: dict[str, Any] | None = None
    """Which examples workers have for themselves: `of` says whether its `counts` `[N, g]`, a row a
    worker, are of classes or of sources; None: all share all.
    """
    conditions_over_time: list[dict[str, Any]] | None = None
    """Over which network the run went on `after_step`, in the order of steps, where that or the
    cluster changed: the `net` and the `options` of both. None: they never did.
    """


def is_unended(status: str | None, reason: str | None) -> bool:
    """Whether a run of this status and reason is at work, or was stopped from outside, so that
    nobody knows what it would reach.
    """
    return status == "failed" and (reason or "").startswith(_INTERRUPTIONS)


def with_workers_since(summary: Summary, earlier: Summary, step: int) -> Summary:
    """`summary` of a run that goes on after `step` of that of `earlier`, with the number of workers
    over time.
    """
    if earlier.workers is None or summary.workers is None:
        return summary
    changes = earlier.workers_over_time or [{"after_step": 0, "workers": earlier.workers}]
    now = {"after_step": step, "workers": summary.workers}
    return replace(summary, workers_over_time=_over_time(changes, now, "workers"))


def _over_time(
    changes: Iterable[dict[str, Any]], now: dict[str, Any], name: str
) -> list[dict[str, Any]] | None:
    """The `changes` before `now`, and `now` where it has another value of that name; None where
    nothing changed.
    """
    kept = [change for change in changes if change["after_step"] < now["after_step"]]
    if kept[-1][name] != now[name]:
        kept.append(now)
    return kept if len(kept) > 1 else None


def with_conditions_since(
    summary: Summary, earlier: Summary, step: int, options: tuple[Mapping[str, Any], ...]
) -> Summary:
    """`summary` of a run that goes on after `step` of that of `earlier`, with the network and the
    cluster over time; `options` are those of the earlier run, and of this one.
    """
    before, now = _condition(0, earlier, options[0]), _condition(step, summary, options[1])
    changes = earlier.conditions_over_time or [before]
    return replace(summary, conditions_over_time=_over_time(changes, now, "options"))


def _condition(step: int, summary: Summary, options: Mapping[str, Any]) -> dict[str, Any]:
    """From `step` on; the machines' own network is another one with another number of them."""
    own = {} if summary.hosts is None else {"hosts": summary.hosts}
    return {"after_step": step, "net": summary.net, "options": {**options, **own}}


def told_conditions(changes: list[dict[str, Any]] | None) -> str | None:
    """Such as "lan_1g, then wan after step 40"; of one network what else differs, such as
    "net.delay_ms=5, then net.delay_ms=50 after step 40". None: nothing changed.

    Raises `ValueError` for what is no network over time.
    """
    if changes is None:
        return None
    try:
        told = [(int(c["after_step"]), str(c["net"]), dict(c["options"])) for c in changes]
        if told[0][0] != 0:
            raise ValueError("it does not begin with the first step")
    except (TypeError, KeyError, ValueError, IndexError) as error:
        raise ValueError(
            "conditions_over_time is no list of after_step, net and options"
        ) from error
    names = [net for _, net, _ in told]
    if any(one == other for one, other in pairwise(names)):
        names = _told_options([options for _, _, options in told])
    later = zip(told[1:], names[1:], strict=True)
    return ", then ".join([names[0], *(f"{name} after step {own[0]}" for own, name in later)])


def _told_options(options: list[dict[str, Any]]) -> list[str]:
    """Those that are not the same in all."""
    keys = sorted({key for own in options for key in own})
    varying = [key for key in keys if any(own.get(key) != options[0].get(key) for own in options)]
    return [", ".join(f"{key}={own.get(key)}" for key in varying) for own in options]


def told_workers(changes: list[dict[str, int]] | None) -> str | None:
    """Such as "2 workers, 1 after step 60"; None: their number never changed.

    Raises `ValueError` for what is no number of workers over time.
    """
    if changes is None:
        return None
    try:
        (first, *others) = [(int(c["after_step"]), int(c["workers"])) for c in changes]
    except (TypeError, KeyError, ValueError) as error:
        raise ValueError("workers_over_time is no list of after_step and workers") from error
    told = [counted(first[1], "worker"), *(f"{n} after step {step}" for step, n in others)]
    return ", ".join(told)


def read_fields(folder: Path) -> dict[str, Any]:
    """The fields that the summary.json in `folder` has, also those that `Summary` has not.

    Raises one of `UNREADABLE`.
    """
    found = decoded(read_text(folder / "summary.json"))
    if not isinstance(found, dict) or None in (found.get("algo"), found.get("status")):
        raise ValueError("not the summary of a run")
    told_workers(found.get("workers_over_time"))
    told_conditions(found.get("conditions_over_time"))
    known = typed({name: found[name] for name in field_types(Summary) if name in found}, Summary)
    for name, value in known.items():
        _check_kind(name, found[name], value)
    _check_values(known)
    return found | known


def target_in(fields: Mapping[str, Any]) -> Target:
    """That of the run with these fields. Raises `ValueError` for one that no run has."""
    metric = fields.get("metric") or ACCURACY
    name = "target_accuracy" if metric == ACCURACY else "target_score"
    return Target(metric=metric, value=fields.get(name))


def _check_kind(name: str, value: Any, made: Any) -> None:
    """Raise `ValueError` where `made` of `value` says something else: 4 of 4.7, true of "false"; or
    is a number that none is, as JSON's NaN.
    """
    kinds = {type(value), type(made)}
    is_other = len(kinds) > 1 and kinds != {int, float}
    is_cut = isinstance(made, int) and made != value
    is_no_number = isinstance(made, float) and math.isnan(made)
    if is_other or is_cut or is_no_number:
        raise ValueError(f"{name}={value!r} is of no run")


def _check_values(known: Mapping[str, Any]) -> None:
    """Raise `ValueError` for what no run comes to."""
    if known["status"] not in _STATUSES:
        raise ValueError(f"status={known['status']!r} is none of {listed(_STATUSES)}")
    target_in(known)
    for name in _NAMES:
        if known.get(name) == "":
            raise ValueError(f"{name}='' is of no run")
    for name, least in _LEAST.items():
        if not least <= known.get(name, least) <= _MOST.get(name, math.inf):
            raise ValueError(f"{name}={known[name]} is of no run")


def read_summary(folder: Path) -> Summary:
    """The summary of the run in `folder`, older ones included. Raises as `read_fields`."""
    fields = read_fields(folder)
    return Summary(**{name: fields.get(name) for name in field_types(Summary)})
