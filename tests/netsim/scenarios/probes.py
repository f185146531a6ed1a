"""What workers find when they prove their network."""

import time
from dataclasses import asdict

from netsim import probe, proof
from netsim.arrivals import Look
from netsim.errors import ProbeError
from netsim.namespaces import Hub
from tests.netsim.scenarios.networks import SLOW, run


def proofs() -> list:
    """`LinkReport`s of four workers, measured three times."""

    def work(hub: Hub, rank: int) -> list:
        addresses = [hub.address(rank) for rank in range(4)]
        reports = [proof.measure(SLOW, rank, addresses) for _ in range(3)]
        return [asdict(report) for report in reports if report is not None]

    return run(SLOW, 4, work)


def broken_probes() -> list:
    """How each of two probes ends for each of four workers, of whom worker 1 breaks off the first
    in the midst of measuring its rate.
    """
    look, num_looks = probe._look, 0

    def break_off() -> Look:
        nonlocal num_looks
        num_looks += 1
        if num_looks == 10:
            raise ConnectionResetError("on purpose")
        return look()

    def work(hub: Hub, rank: int) -> list:
        addresses = [hub.address(rank) for rank in range(4)]
        if rank == 1:
            probe._look = break_off
        ends = []
        for _ in range(2):
            try:
                proof.measure(SLOW, rank, addresses)
                ends.append("measured")
            except ProbeError as error:
                ends.append(type(error).__name__)
            time.sleep(1)  # the launcher of a run says when all are to try again
        return ends

    return run(SLOW, 4, work)


def silent_neighbour() -> list:
    """What the probes of workers 1 and 2 say when worker 0 does not take part."""
    probe.LIMIT_S = 1

    def work(hub: Hub, rank: int) -> str | None:
        if rank == 0:
            time.sleep(4)
            return None
        try:
            proof.measure(SLOW, rank, [hub.address(rank) for rank in range(3)])
        except ProbeError as error:
            return str(error)

    return run(SLOW, 3, work)
