"""Whether simulated workers fit into this machine's memory."""

import re
from contextlib import suppress
from pathlib import Path

from experiments.plan.plan import Plan
from host.errors import UserError

_MEMINFO = Path("/proc/meminfo")
_LIMIT = Path("/sys/fs/cgroup/memory.max")
"""A container's own, or "max"."""


def check_memory(plan: Plan) -> None:
    """Raise `UserError` where the stacked workers' weights and gradients alone are more than is
    free: the kernel would kill the run, which could then say nothing.
    """
    if plan.backend.device != "cpu":
        return
    parameters = list(plan.model.parameters())
    needed = plan.workers * sum((1 + p.requires_grad) * p.nbytes for p in parameters)
    free = free_bytes()
    if free is not None and needed > free:
        raise UserError(
            f"{plan.workers} simulated workers with model={plan.names['model']} need "
            f"{needed / 1e9:.1f} GB for weights and gradients alone, and {free / 1e9:.1f} GB are "
            "free: take fewer workers or a smaller model."
        )


def free_bytes() -> int | None:
    """What this process can still get, at the most; None where the kernel does not say."""
    try:
        kilobytes = re.findall(r"^(?:MemAvailable|SwapFree):\s+(\d+)", _MEMINFO.read_text(), re.M)
    except OSError:
        return None
    free = 1024 * sum(map(int, kilobytes))
    with suppress(OSError, ValueError):
        free = min(free, int(_LIMIT.read_text()))
    return free
