"""Every preset on every back end: asked against achieved, as a Markdown table.

    python -m netsim validate --out results/validation/network.md

Where this host's kernel lacks netem, a guest's is measured; see `guest`.
"""

import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from importlib.metadata import version
from pathlib import Path

from host.markdown import table
from host.output import check_folder, writing
from netsim.conditions.condition import BACKENDS, NetworkCondition
from netsim.conditions.presets import preset_names, read_condition
from netsim.proof import proof, round_trip
from netsim.proof.proof import LinkReport
from netsim.validation import back_ends, ring
from netsim.validation.back_ends import (
    ALL_REDUCE_BYTES,
    NUM_WORKERS,
    ValidationOutcome,
    ValidationTask,
)

MAX_RATE_MBIT = 1000
"""Faster presets are for simulation."""

ALL_REDUCES = {
    "100 Mbit/s": NetworkCondition(rate_mbit=100),
    "100 Mbit/s, 5 ms": NetworkCondition(rate_mbit=100, delay_ms=5),
    "1 Gbit/s": NetworkCondition(rate_mbit=1000),
}
NUM_ALL_REDUCES = 11
_SIGMAS_95 = 1.96

_HEADERS = (
    *("network", "back end", "rate: largest deviation", "round trip: largest deviation"),
    "loss",
)
_TIMES_HEADERS = ("network", "back end", "took", "against theory", "switch")

Cells = tuple[str, str, str, str, str]


def validate(out: Path) -> int:
    """Measure everything and write the tables; returns 0. Takes some ten minutes."""
    check_folder(out.parent)
    tasks = {n: ValidationTask(condition=c) for n, c in _networks().items()}
    tasks |= {
        n: ValidationTask(condition=c, num_all_reduces=NUM_ALL_REDUCES)
        for n, c in ALL_REDUCES.items()
    }
    outcomes = {backend: _measure(backend, tasks) for backend in BACKENDS}
    rows = [row_of(n, b, outcomes[b][n]) for n in tasks if n not in ALL_REDUCES for b in BACKENDS]
    times = [
        all_reduce_row(name, backend, condition, outcomes[backend][name])
        for name, condition in ALL_REDUCES.items()
        for backend in BACKENDS
    ]
    conditions = [condition_row(name, condition) for name, condition in _networks().items()]
    with writing(out):
        out.write_text(_document(rows, times, conditions))
    return 0


def row_of(name: str, backend: str, outcome: ValidationOutcome) -> Cells:
    """One network on one back end: its worst link, and the losses of all."""
    if outcome.refused is not None:
        return name, backend, _reason(outcome), "", ""
    links = outcome.links
    rates = [pct for link in links if (pct := link.rate_deviation_pct) is not None]
    rate = f"{max(rates, key=abs):+.1f} %" if rates else "unshaped"
    worst = max(links, key=lambda link: abs(_rtt_off_ms(link)) / back_ends.rtt_limit_ms(link))
    rtt = f"{_rtt_off_ms(worst):+.2f} of {worst.asked_rtt_ms:g} ms"
    return name, backend, rate, rtt, _loss(links)


def all_reduce_row(
    name: str, backend: str, condition: NetworkCondition, outcome: ValidationOutcome
) -> Cells:
    """One network's all-reduces on one back end."""
    if outcome.refused is not None:
        return name, backend, _reason(outcome), "", ""
    seconds = outcome.all_reduce_seconds
    median = statistics.median(seconds)
    theory = ring.seconds_in_theory(condition.path(0, 1), NUM_WORKERS, ALL_REDUCE_BYTES)
    off_pct = 100 * (median / theory - 1)
    took = f"{median:.3f} s ({min(seconds):.3f} to {max(seconds):.3f})"
    load = "-" if outcome.switch_load is None else f"{100 * outcome.switch_load:.0f} %"
    return name, backend, took, f"{off_pct:+.1f} % of {theory:.3f} s", load


def condition_row(name: str, condition: NetworkCondition) -> tuple[str, str]:
    """The values of a measured preset that differ from the defaults."""
    values = {field.name: getattr(condition, field.name) for field in fields(condition)}
    default = NetworkCondition()
    words = [f"{k}={v}" for k, v in values.items() if v != getattr(default, k)]
    return name, ", ".join(words) or "an unshaped network"


def _networks() -> dict[str, NetworkCondition]:
    conditions = {name: read_condition(name) for name in preset_names()}
    return {n: c for n, c in conditions.items() if (c.rate_mbit or 0) <= MAX_RATE_MBIT}


def _measure(backend: str, tasks: dict[str, ValidationTask]) -> dict[str, ValidationOutcome]:
    in_guest = backend == "netem" and not back_ends.has_netem()
    forced = [replace(t, condition=replace(t.condition, backend=backend)) for t in tasks.values()]
    outcomes = (back_ends.measure_in_guest if in_guest else back_ends.measure)(forced)
    print(f"{backend}: done", file=sys.stderr)
    return dict(zip(tasks, outcomes, strict=True))


def _rtt_off_ms(link: LinkReport) -> float:
    return link.achieved_rtt_ms - link.asked_rtt_ms


def _reason(outcome: ValidationOutcome) -> str:
    """The refusal without the advice that follows its colon."""
    return f"not measured: {(outcome.refused or '').partition(':')[0].rstrip('.')}"


def _loss(links: Sequence[LinkReport]) -> str:
    counted = [link for link in links if link.num_sent is not None]
    if not counted:
        return "-"
    num_sent = sum(link.num_sent or 0 for link in counted)
    num_lost = sum(link.num_lost or 0 for link in counted)
    least, most = proof.loss_interval(num_sent, counted[0].asked_loss_pct, _SIGMAS_95)
    where = "within" if least <= num_lost <= most else "outside"
    return f"{num_lost} of {num_sent}, {where} {max(0, least):.0f} to {most:.0f}"


def _document(rows: list[Cells], times: list[Cells], conditions: list[tuple[str, str]]) -> str:
    return f"""\
# Networks: asked against achieved

`python -m netsim validate --out results/validation/network.md` made this on Linux
{platform.release()}, {os.cpu_count()} cores, Python {platform.python_version()}, pyroute2 \
{version("pyroute2")}. {_where_netem()}

{NUM_WORKERS} workers; the worst link counts. Limits: {back_ends.RATE_LIMIT_PCT} % of the rate, \
{back_ends.RTT_LIMIT_MS} ms or {back_ends.RTT_LIMIT_PCT} % of the round trip, and the
95 % interval of the loss, which chance leaves once in 20 times. Rates are TCP's with headers, on
lossy networks with the loss taken out; round trips are the least of {round_trip.NUM_PINGS} \
openings of a connection. A busy host can
only disturb, so the best of up to {back_ends.NUM_ATTEMPTS} measurements of each link is shown; \
the losses of all are added up.
The dc networks are for simulation.

{table(_HEADERS, rows)}

Ring all-reduce of {ALL_REDUCE_BYTES / 1e6:g} MB by plain sockets, CUBIC, median and range of \
{NUM_ALL_REDUCES}, and the part
of one processor that the switch took:

{table(_TIMES_HEADERS, times)}
{conditions_table(conditions)}"""


def conditions_table(rows: list[tuple[str, str]]) -> str:
    """What each network was when it was measured."""
    return f"""
The networks as they were measured; (stale) marks one that its file no longer describes:

{table(("network", "condition"), rows)}
"""


def _where_netem() -> str:
    if back_ends.has_netem():
        return "Netem is\nthis kernel's."
    return (
        "Netem is\nthat of a User-Mode Linux guest (`netsim/links/guest.py`) with one slow "
        "processor, which keeps up with\n100 Mbit/s of every worker and not with 1 Gbit/s of all."
    )
