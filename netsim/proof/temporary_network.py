"""A network that is made, measured by its workers, and gone again."""

import fcntl
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from host.processes import fork, kill, schedule_as_batch
from netsim.conditions.condition import NetworkCondition
from netsim.errors import NamespaceError, ProbeError
from netsim.links.namespaces import Hub
from netsim.links.tcp import TcpSettings
from netsim.proof import one_connection, proof
from netsim.proof.one_connection import ConnectionReport
from netsim.proof.proof import LinkReport

_REFUSED = 3


@dataclass(frozen=True, kw_only=True)
class NetworkReport:
    """What a network turned out to be: the back end's name, each link, the TCP of each worker, and
    what one connection carries; None for a single worker.
    """

    backend: str
    links: list[LinkReport]
    tcp: list[dict[str, Any]]
    connection: ConnectionReport | None


def probe_network(condition: NetworkCondition, num_workers: int) -> NetworkReport:
    """Make the network, measure every link and one connection, and take it down again.

    Raises:
        NamespaceError, ProbeError: if the network cannot be made or measured.
        ValueError: if that would take minutes.
    """
    proof.round_trip_s(condition, num_workers)

    def work(hub: Hub, rank: int) -> dict[str, Any]:
        from netsim.links import tcp

        addresses = [hub.address(r) for r in range(num_workers)]
        link = proof.probe(condition, rank, addresses)
        settings = asdict(tcp.read())
        mbit = None if link is None else one_connection.measure(condition, rank, addresses)
        return {"link": None if link is None else asdict(link), "tcp": settings, "mbit": mbit}

    results = run_workers(condition, num_workers, work)
    reports = [result["link"] for result in results.values]
    settings = [result["tcp"] for result in results.values]
    carried = [result["mbit"] for result in results.values if result["mbit"] is not None]
    return NetworkReport(
        backend=results.backend,
        links=[LinkReport(**report) for report in reports if report is not None],
        tcp=settings,
        connection=(
            one_connection.report(condition, carried[0], TcpSettings(**settings[0]))
            if carried
            else None
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Results:
    """What the workers returned, by rank, and what `in_hub` did."""

    backend: str
    values: list[Any]
    hub: Any


def run_workers(
    condition: NetworkCondition,
    num_workers: int,
    work: Callable[[Hub, int], Any],
    in_hub: Callable[[Hub], Any] = lambda hub: None,
) -> Results:
    """Call `work` in every worker of a new network, scheduled as real workers are.

    Args:
        condition: of the network.
        num_workers: how many.
        work: is given the hub and a rank; returns what JSON can hold.
        in_hub: called in the hub's process once all workers have ended.

    Raises:
        NamespaceError, ProbeError: if the network cannot be made, or a worker raises one.
    """
    reader, writer = os.pipe()

    def run_hub() -> int:
        os.close(reader)
        try:
            hub = Hub(condition, num_workers)
            all_done, not_done = os.pipe()

            def run_worker(rank: int) -> int:
                schedule_as_batch()
                code = _answer(writer, rank, lambda: work(hub, rank))
                os.close(not_done)
                os.read(all_done, 1)  # who exits takes the link, and what it still holds, away
                return code

            pids = hub.fork_workers(run_worker)
            os.close(not_done)
            while pids:
                pid, _ = os.wait()
                del pids[pid]
            return _answer(writer, num_workers, lambda: [hub.backend, in_hub(hub)])
        except (NamespaceError, ValueError) as error:
            return _refuse(writer, error)

    hub_pid = fork(run_hub)
    os.close(writer)
    try:
        with os.fdopen(reader) as lines:
            answers = [json.loads(line) for line in lines]
    finally:
        with suppress(ProcessLookupError):
            kill(hub_pid)
    for rank, value in answers:
        if rank < 0:
            raise (ProbeError if rank == -2 else NamespaceError)(value)
    found = dict(answers)
    if len(found) <= num_workers:
        raise NamespaceError("A worker or the hub of the network died; what it printed says why.")
    backend, hub_value = found[num_workers]
    values = [found[rank] for rank in range(num_workers)]
    return Results(backend=backend, values=values, hub=hub_value)


def _answer(writer: int, rank: int, call: Callable[[], Any]) -> int:
    try:
        _write(writer, rank, call())
    except ProbeError as error:
        _write(writer, -2, str(error))
        return _REFUSED
    return 0


def _refuse(writer: int, error: Exception) -> int:
    _write(writer, -1, str(error))
    return _REFUSED


def _write(writer: int, rank: int, value: Any) -> None:
    """Write a line to the pipe of all, one process at a time: lines that are longer than the pipe
    has room for would mix.
    """
    with open(f"/proc/self/fd/{writer}", "wb") as pipe:  # anew: a lock is an open file's
        fcntl.flock(pipe, fcntl.LOCK_EX)
        pipe.write(json.dumps([rank, value]).encode() + b"\n")
