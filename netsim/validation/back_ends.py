"""Conditions measured one after the other, on this kernel or on a guest's.

In the guest this module runs as a program: `python -m netsim.validation.back_ends TASKS` takes a
JSON list of `ValidationTask`s and prints a JSON list of `ValidationOutcome`s.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from host import commands
from netsim.conditions.condition import NetworkCondition
from netsim.errors import NamespaceError, ProbeError
from netsim.links import guest
from netsim.links.namespaces import check_permitted
from netsim.proof.proof import LinkReport
from netsim.validation import every_link

NUM_WORKERS = 4
ALL_REDUCE_BYTES = 10_000_000
NUM_ATTEMPTS = 5
RATE_LIMIT_PCT = 3
RTT_LIMIT_MS = 0.6
RTT_LIMIT_PCT = 3
_GUEST_SECONDS_PER_TASK = 240


@dataclass(frozen=True, kw_only=True)
class ValidationTask:
    """A condition of `NUM_WORKERS` workers, and how many all-reduces to time beside its links."""

    condition: NetworkCondition
    num_all_reduces: int = 0


@dataclass(frozen=True, kw_only=True)
class ValidationOutcome:
    """What became of a task: why it was not measured, or its links and its all-reduces.

    `switch_load` is the part of one processor that the switch took meanwhile; None without one.
    """

    refused: str | None = None
    links: tuple[LinkReport, ...] = ()
    all_reduce_seconds: tuple[float, ...] = ()
    switch_load: float | None = None


def measure(tasks: Sequence[ValidationTask]) -> list[ValidationOutcome]:
    """Measure on this kernel."""
    return [_measured(task) for task in tasks]


def measure_in_guest(tasks: Sequence[ValidationTask]) -> list[ValidationOutcome]:
    """Measure on a guest's kernel; all are refused where the host has none."""
    limit_s = _GUEST_SECONDS_PER_TASK * len(tasks)
    try:
        said = guest.run_module("netsim.validation.back_ends", [to_json(tasks)], limit_s=limit_s)
    except guest.GuestError as error:
        return [ValidationOutcome(refused=str(error))] * len(tasks)
    return outcomes_from_json(said)


def has_netem() -> bool:
    """Whether this kernel has netem, tried in a namespace that is thrown away."""
    try:
        check_permitted(NetworkCondition(delay_ms=1, backend="netem"))
    except NamespaceError:
        return False
    return True


def best_of(attempts: Sequence[Sequence[LinkReport]]) -> list[LinkReport]:
    """The best rate and round trip of each link, since a busy host disturbs; losses add up."""
    return [_best_of(links) for links in zip(*attempts, strict=True)]


def keeps_limits(link: LinkReport) -> bool:
    """Whether rate and round trip are as near to what was asked for as can be promised."""
    return _rate_off_pct(link) <= RATE_LIMIT_PCT and _rtt_off_ms(link) <= rtt_limit_ms(link)


def rtt_limit_ms(link: LinkReport) -> float:
    """How far its round trip may be off."""
    return max(RTT_LIMIT_MS, RTT_LIMIT_PCT / 100 * link.asked_rtt_ms)


def to_json(items: Sequence[ValidationTask] | Sequence[ValidationOutcome]) -> str:
    """For `tasks_from_json` or `outcomes_from_json` in another process."""
    return json.dumps([asdict(item) for item in items])


def tasks_from_json(text: str) -> list[ValidationTask]:
    """The tasks that `to_json` wrote."""
    return [
        ValidationTask(**values | {"condition": NetworkCondition(**values["condition"])})
        for values in json.loads(text)
    ]


def outcomes_from_json(text: str) -> list[ValidationOutcome]:
    """The outcomes that `to_json` wrote."""
    return [
        ValidationOutcome(
            refused=values["refused"],
            links=tuple(LinkReport(**link) for link in values["links"]),
            all_reduce_seconds=tuple(values["all_reduce_seconds"]),
            switch_load=values["switch_load"],
        )
        for values in json.loads(text)
    ]


def _measured(task: ValidationTask) -> ValidationOutcome:
    try:
        outcome = ValidationOutcome(links=tuple(_links(task.condition)))
        if not task.num_all_reduces:
            return outcome
        timed = every_link.all_reduces(
            task.condition, NUM_WORKERS, ALL_REDUCE_BYTES, task.num_all_reduces
        )
    except (NamespaceError, ProbeError) as error:
        return ValidationOutcome(refused=str(error))
    return replace(outcome, all_reduce_seconds=tuple(timed.seconds), switch_load=timed.switch_load)


def _links(condition: NetworkCondition) -> list[LinkReport]:
    """Until all links keep the limits, or enough was tried."""
    attempts: list[list[LinkReport]] = []
    for _ in range(NUM_ATTEMPTS):
        attempts.append(every_link.measure_links(condition, NUM_WORKERS))
        if all(map(keeps_limits, best_of(attempts))):
            break
    return best_of(attempts)


def _best_of(reports: Sequence[LinkReport]) -> LinkReport:
    counted = reports[0].num_sent is not None
    return replace(
        reports[0],
        achieved_rate_mbit=min(reports, key=_rate_off_pct).achieved_rate_mbit,
        achieved_rtt_ms=min(reports, key=_rtt_off_ms).achieved_rtt_ms,
        num_sent=sum(report.num_sent or 0 for report in reports) if counted else None,
        num_lost=sum(report.num_lost or 0 for report in reports) if counted else None,
    )


def _rate_off_pct(report: LinkReport) -> float:
    return abs(report.rate_deviation_pct or 0.0)


def _rtt_off_ms(report: LinkReport) -> float:
    return abs(report.achieved_rtt_ms - report.asked_rtt_ms)


def main() -> None:
    """The command line."""
    print(to_json(measure(tasks_from_json(sys.argv[1]))))


if __name__ == "__main__":
    commands.run(main)
