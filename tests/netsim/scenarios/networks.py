"""A network of workers for one scenario, and what comes of it."""

import json
import os
from collections.abc import Callable

from host.processes import fork
from netsim.conditions.condition import NetworkCondition
from netsim.links.namespaces import Hub

SLOW = NetworkCondition(rate_mbit=100, queue_ms=200)


def run(
    condition: NetworkCondition,
    num_workers: int,
    work: Callable[[Hub, int], object],
    in_hub: Callable[[], object] = lambda: None,
) -> list:
    """Results of `work` by rank, then that of `in_hub` or, if a process failed, its exit code."""
    reader, writer = os.pipe()

    def run_hub() -> int:
        hub = Hub(condition, num_workers)

        def worker_main(rank: int) -> int:
            report(writer, rank, work(hub, rank))
            return 0

        pids = hub.fork_workers(worker_main)
        report(writer, num_workers, in_hub())
        return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)

    hub_pid = fork(run_hub)
    os.close(writer)
    with os.fdopen(reader) as lines:
        results = dict(json.loads(line) for line in lines)
    code = os.waitstatus_to_exitcode(os.waitpid(hub_pid, 0)[1])
    if code:
        results[num_workers] = code
    return [results.get(rank) for rank in range(num_workers + 1)]


def report(writer: int, rank: int, result: object) -> None:
    os.write(writer, json.dumps([rank, result]).encode() + b"\n")


def interfaces() -> list[str]:
    with open("/proc/net/dev") as table:
        return sorted(line.split(":")[0].strip() for line in table if ":" in line)
