"""Every preset on every back end of this host: asked against achieved, as a Markdown table.

python -m netsim validate --out results/validation/network.md
"""

import os
import platform
import statistics
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path

from netsim import probe, proof, ring
from netsim.condition import BACKENDS, NetworkCondition
from netsim.errors import NamespaceError, ProbeError
from netsim.namespaces import Hub
from netsim.presets import preset_names, read_condition
from netsim.proof import LinkReport
from netsim.trial import measure_network, run_workers

NUM_WORKERS = 4
ALL_REDUCE_BYTES = 10_000_000
NUM_ATTEMPTS = 5
RATE_LIMIT_PCT = 3
RTT_LIMIT_MS = 0.6
RTT_LIMIT_PCT = 3
_NUM_TIMES = 11
_SIGMAS_95 = 1.96
_HEADER = """\
| network | back end | rate: largest deviation | round trip: largest deviation | loss |
| --- | --- | --- | --- | --- |
"""


def validate(out: Path) -> int:
    """Measure everything and write the table; returns 0. Takes some minutes."""
    lines = [_preamble(), _HEADER]
    for name in preset_names():
        for row in _rows(name):
            print(row, file=sys.stderr)
            lines.append(row + "\n")
    lines.append("\n" + _all_reduces())
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(lines))
    return 0


def row_of(name: str, backend: str, links: list[LinkReport]) -> str:
    """One network on one back end, its worst link."""
    rated = [link for link in links if link.asked_rate_mbit]
    rates = [100 * (link.achieved_rate_mbit / (link.asked_rate_mbit or 1) - 1) for link in rated]
    rtts = [(link.achieved_rtt_ms - link.asked_rtt_ms, link.asked_rtt_ms) for link in links]
    off_ms, asked_ms = max(rtts, key=lambda rtt: abs(rtt[0]))
    rate = f"{max(rates, key=abs):+.1f} %" if rates else "unshaped"
    return f"| {name} | {backend} | {rate} | {off_ms:+.2f} of {asked_ms:g} ms | {_loss(links)} |"


def _loss(links: list[LinkReport]) -> str:
    counted = [link for link in links if link.num_sent is not None]
    if not counted:
        return "-"
    num_sent = sum(link.num_sent or 0 for link in counted)
    num_lost = sum(link.num_lost or 0 for link in counted)
    least, most = proof.loss_interval(num_sent, counted[0].asked_loss_pct, _SIGMAS_95)
    where = "within" if least <= num_lost <= most else "outside"
    return f"{num_lost} of {num_sent}, {where} {max(0, least):.0f} to {most:.0f}"


def _rows(name: str) -> Iterator[str]:
    condition = read_condition(name, [])
    for backend in BACKENDS:
        with suppress(NamespaceError):
            yield row_of(name, backend, _best(replace(condition, backend=backend)))


def _best(condition: NetworkCondition) -> list[LinkReport]:
    """The measurement with the least deviation of all; the first that keeps the limits will do."""
    attempts: list[list[LinkReport]] = []
    for _ in range(NUM_ATTEMPTS):
        with suppress(ProbeError):  # too little has come to measure a rate
            attempts.append(measure_network(condition, NUM_WORKERS).links)
            if _badness(attempts[-1]) <= 1:
                break
    if not attempts:
        raise NamespaceError("Nothing could be measured: free the host's processors.")
    return min(attempts, key=_badness)


def _badness(links: list[LinkReport]) -> float:
    """The largest deviation as a part of its limit."""
    bad = [0.0]
    for link in links:
        if link.asked_rate_mbit:
            deviation = probe.deviation_pct(link.asked_rate_mbit, link.achieved_rate_mbit)
            bad.append(abs(deviation) / RATE_LIMIT_PCT)
        limit_ms = max(RTT_LIMIT_MS, RTT_LIMIT_PCT / 100 * link.asked_rtt_ms)
        bad.append(abs(link.achieved_rtt_ms - link.asked_rtt_ms) / limit_ms)
    return max(bad)


def _all_reduces() -> str:
    delayed = NetworkCondition(rate_mbit=100, delay_ms=5, backend="switch")
    fast = NetworkCondition(rate_mbit=1000, backend="switch")
    title = f"10 MB ring all-reduce of 4 workers by plain sockets, CUBIC, median of {_NUM_TIMES}:"
    lines = [title, "", _all_reduce("100 Mbit/s, 5 ms", delayed), _all_reduce("1 Gbit/s", fast)]
    return "\n".join(lines) + "\n"


def _all_reduce(name: str, condition: NetworkCondition) -> str:
    def work(hub: Hub, rank: int) -> list[float]:
        addresses = [hub.address(r) for r in range(NUM_WORKERS)]
        return ring.all_reduce_seconds(rank, addresses, ALL_REDUCE_BYTES, num_times=_NUM_TIMES)

    results = run_workers(condition, NUM_WORKERS, work, _counters)
    seconds = statistics.median(results.values[0])
    theory = ring.seconds_in_theory(condition.path(0, 1), NUM_WORKERS, ALL_REDUCE_BYTES)
    busy_pct = 100 * results.hub["cpu_s"] / sum(results.values[0])
    return (
        f"- {name}: {seconds:.3f} s, in theory {theory:.3f} s ({100 * (seconds / theory - 1):+.1f}"
        f" %); the switch took {busy_pct:.0f} % of a core, its start included, and came too late "
        f"for {results.hub['num_unread']} packets."
    )


def _counters(hub: Hub) -> dict[str, float]:
    assert hub.switch is not None
    return asdict(hub.switch.counters())


def _preamble() -> str:
    return f"""\
# Networks: asked against achieved

`python -m netsim validate --out results/validation/network.md` made this on Linux
{platform.release()}, {os.cpu_count()} cores, Python {platform.python_version()}, pyroute2 \
{version("pyroute2")}.

{NUM_WORKERS} workers; the worst link counts. Limits: {RATE_LIMIT_PCT} % of the rate, and \
{RTT_LIMIT_MS} ms or {RTT_LIMIT_PCT} % of the round trip;
loss within its 95 % interval. A busy host can only disturb, so of up to {NUM_ATTEMPTS} \
measurements the best
is shown. A back end that the kernel lacks, or that cannot do what is asked, has no row; the dc
networks are for simulation.

"""
