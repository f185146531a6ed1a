"""A condition as a queueing discipline of the kernel: `tbf` for a rate alone, else `netem`."""

from math import ceil
from typing import Literal

from netsim import links
from netsim.condition import FRAME_BYTES, MAX_RATE_MBIT, NetworkCondition
from netsim.errors import NamespaceError
from netsim.processes import enter_network_namespace, run_in_child

_SAMPLES = {"tbf": NetworkCondition(rate_mbit=1), "netem": NetworkCondition(delay_ms=1)}
_ESCAPES = {
    "tbf": "load the module sch_tbf or set rate_mbit to null",
    "netem": "load the module sch_netem or set delay_ms, jitter_ms and loss_pct to zero",
}


def apply(condition: NetworkCondition, interface: str) -> None:
    """Make what `interface` sends (never what it receives) follow the condition.

    Raises:
        NamespaceError: if the kernel lacks the discipline that the condition needs.
    """
    discipline = qdisc(condition)
    if discipline and not links.add_qdisc(interface, discipline):
        kind = discipline["kind"]
        raise NamespaceError(f"This kernel has no queueing discipline {kind}: {_ESCAPES[kind]}.")


def has_qdisc(kind: Literal["tbf", "netem"]) -> bool:
    """Whether this kernel has the discipline, tried in a network namespace that is thrown away.

    Raises:
        NamespaceError: if this user may not make a network namespace.
    """

    def attempt() -> str:
        enter_network_namespace()
        return "yes" if links.add_qdisc("lo", qdisc(_SAMPLES[kind])) else "no"

    return run_in_child(attempt) == "yes"


def qdisc(condition: NetworkCondition) -> dict:
    """Arguments of `IPRoute.tc("add", ...)` for the condition; empty for an ideal link."""
    if condition.needs_netem:
        return _netem(condition)
    return {} if condition.rate_mbit is None else _tbf(condition)


def _tbf(condition: NetworkCondition) -> dict:
    return {
        "kind": "tbf",
        "rate": condition.rate_bytes_per_s,
        "burst": condition.burst_bytes,
        # The kernel counts the burst as part of the queue.
        "limit": condition.burst_bytes + condition.queue_bytes,
    }


def _netem(condition: NetworkCondition) -> dict:
    arguments = {
        "kind": "netem",
        "delay": round(1000 * condition.delay_ms),  # microseconds
        "jitter": round(1000 * condition.jitter_ms),
        "loss": condition.loss_pct,
        "limit": _netem_limit(condition),
    }
    if condition.rate_mbit is not None:
        arguments["rate"] = condition.rate_bytes_per_s
    return arguments


def _netem_limit(condition: NetworkCondition) -> int:
    """The queue in packets. Netem holds a packet during its delay too: that comes on top."""
    bytes_per_ms = (condition.rate_mbit or MAX_RATE_MBIT) * 1e3 / 8
    in_flight_bytes = (condition.delay_ms + condition.jitter_ms) * bytes_per_ms
    return ceil((condition.queue_bytes + in_flight_bytes) / FRAME_BYTES) + 1
