"""What a step takes by the closed formula: its work, then bytes over the rate and the delay of each
step of a message pattern, one operation after the other. It knows no overlap, host or TCP.
"""

from bagua_algos.communication.communicator import Operation
from experiments.simulated.clocks import Script
from experiments.simulated.profile import Profile
from experiments.validation.collectives import theory_s
from netsim.conditions.condition import NetworkCondition
from netsim.conditions.units import bytes_per_s


def step_s(script: Script, profile: Profile, condition: NetworkCondition, pattern: str) -> float:
    """Mean seconds of the steps of `script`. The link is that of the first two workers' path."""
    compute_s = profile.forward_s + profile.late_s + profile.backward_s + profile.optimizer_s
    parts = [part for jobs in script for job in jobs for part in job.work]
    operations = [part for part in parts if isinstance(part, Operation)]
    kernels_s = sum(part for part in parts if isinstance(part, float))
    messages_s = sum(operation_s(one, condition, pattern) for one in operations)
    return compute_s + (kernels_s + messages_s) / len(script)


def operation_s(operation: Operation, condition: NetworkCondition, pattern: str) -> float:
    """Seconds of one operation, between all workers or some."""
    world_size = operation.world_size
    if operation.name == "all_reduce_mean":
        return theory_s(condition, world_size, pattern, operation.num_bytes)
    path = condition.path(0, 1)
    per_byte_s = 1 / bytes_per_s(path.rate_mbit) if path.rate_mbit else 0.0
    steps = {
        "all_to_all": 1,
        "exchange": 1,
        "reduce_scatter_mean": world_size - 1,
        "all_gather": world_size - 1,
        "broadcast": (world_size - 1).bit_length(),
    }[operation.name]
    return steps * path.delay_ms / 1000 + operation.bytes_sent * per_byte_s
