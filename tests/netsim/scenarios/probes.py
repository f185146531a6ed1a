"""What workers find when they prove their network."""

import multiprocessing
import time
from dataclasses import asdict
from typing import Any

from netsim.conditions.condition import NetworkCondition
from netsim.errors import ProbeError
from netsim.links.namespaces import Hub
from netsim.proof import one_connection, proof, tcp_rate
from tests.netsim.scenarios.networks import SLOW, run


def proofs() -> list:
    """`LinkReport`s of four workers, measured three times."""

    def work(hub: Hub, rank: int) -> list:
        addresses = [hub.address(rank) for rank in range(4)]
        reports = [proof.probe(SLOW, rank, addresses) for _ in range(3)]
        return [asdict(report) for report in reports if report is not None]

    return run(SLOW, 4, work)


def broken_rates() -> list:
    """How two probes of four workers end of whom worker 1 breaks off the first amid its rates."""
    return broken("_sample", num_calls=10)


def broken_meetings() -> list:
    """The same, where worker 1 breaks off before that."""
    return broken("meet", num_calls=1)


def broken(function: str, num_calls: int) -> list:
    original, calls = getattr(tcp_rate, function), []
    everyone = multiprocessing.get_context("fork").Barrier(4)

    def break_off(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == num_calls:
            raise ConnectionResetError("on purpose")
        return original(*arguments)

    def work(hub: Hub, rank: int) -> list:
        addresses = [hub.address(rank) for rank in range(4)]
        if rank == 1:
            setattr(tcp_rate, function, break_off)
        ends = []
        for _ in range(2):
            try:
                proof.probe(SLOW, rank, addresses)
                ends.append("measured")
            except ProbeError as error:
                ends.append(type(error).__name__)
            everyone.wait(timeout=60)  # the launcher of a run says when all are to try again
        return ends

    return run(SLOW, 4, work)


def silent_neighbour() -> list:
    """What the probes of workers 1 and 2 say when worker 0 does not take part."""
    tcp_rate.LIMIT_S = 1

    def work(hub: Hub, rank: int) -> str | None:
        if rank == 0:
            time.sleep(4)
            return None
        try:
            proof.probe(SLOW, rank, [hub.address(rank) for rank in range(3)])
        except ProbeError as error:
            return str(error)

    return run(SLOW, 3, work)


def far_neighbours() -> list:
    """Round trips that two workers measure who are further apart than any wait is long that does
    not count with it: once by datagrams and once by TCP, and one connection's rate.
    """
    tcp_rate.LIMIT_S = one_connection.LIMIT_S = 0.5
    one_connection._WARM_UP_ROUND_TRIPS = 1

    def measure(condition: NetworkCondition, rank: int, addresses: list[str]) -> float:
        report = proof.probe(condition, rank, addresses)
        assert report is not None
        return report.achieved_rtt_ms

    def work(hub: Hub, rank: int) -> list:
        addresses = [hub.address(rank) for rank in range(2)]
        rtts_ms = [measure(condition, rank, addresses) for condition in (hub.condition, FAST_TOO)]
        return [*rtts_ms, one_connection.measure(hub.condition, rank, addresses)]

    return run(FAR, 2, work)


FAR = NetworkCondition(rate_mbit=10, delay_ms=550)
FAST_TOO = NetworkCondition(rate_mbit=50, delay_ms=550)
"""The same links, of which the proof is asked to take them for faster ones, by TCP."""
