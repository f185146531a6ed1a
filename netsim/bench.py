"""How fast simulated time is on this machine: `python -m netsim.bench [--repeats 5]`.

1,024 workers train for 1,000 steps of 20 buckets, by all-reduces and by exchanges in turn. Prints
the processor time of one core in medians with their spread; it never judges.
"""

import statistics
import time

from host import commands
from host.command_line.parser import Parser
from netsim.conditions.condition import NetworkCondition
from netsim.timeline.compute import ComputeTimes, Lognormal, even_buckets
from netsim.timeline.cost_model import CostModel, PlainOperation
from netsim.timeline.timeline import Timeline, TimelineJob

NUM_WORKERS = 1024
NUM_STEPS = 1000
NUM_BUCKETS = 20
BUCKET_BYTES = 4_000_000


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = Parser(prog="python -m netsim.bench", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="of each operation (default 5)")
    repeats = parser.parse_args().repeats
    if repeats < 1:
        parser.error(f"--repeats must be at least 1, got {repeats}")
    ranks = tuple(range(NUM_WORKERS))
    next_ranks = (*ranks[1:], 0)
    names: dict[str, tuple[int, ...] | None] = {"all_reduce_mean": None, "exchange": next_ranks}
    measured: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name, peers in names.items():
            operation = PlainOperation(name=name, num_bytes=BUCKET_BYTES, ranks=ranks, peers=peers)
            measured[name].append(_train(operation))
    print(f"{NUM_WORKERS} workers, {NUM_STEPS} steps, {NUM_BUCKETS} buckets, {repeats} repeats")
    for name, times_s in measured.items():
        middle_s, low_s, high_s = statistics.median(times_s), min(times_s), max(times_s)
        print(f"{name:16} {middle_s:6.2f} s of processor time ({low_s:.2f} to {high_s:.2f})")
    return 0


def _train(operation: PlainOperation) -> float:
    """Processor seconds of a training whose every bucket does one operation."""
    condition = NetworkCondition(rate_mbit=10_000, delay_ms=0.05)
    compute = ComputeTimes(
        forward_s=0.05,
        backward_s=0.1,
        bucket_ready_s=even_buckets(0.1, NUM_BUCKETS),
        optimizer_s=0.01,
        variation=Lognormal(sigma=0.05),
    )
    jobs = [
        TimelineJob(moment="bucket_ready", bucket=bucket, work=[operation])
        for bucket in range(NUM_BUCKETS)
    ]
    begin_s = time.process_time()
    timeline = Timeline(CostModel(condition, NUM_WORKERS), compute)
    for _ in range(NUM_STEPS):
        timeline.replay(jobs)
    return time.process_time() - begin_s


if __name__ == "__main__":
    commands.run(main)
