"""The assignment that torchrun or srun has given this process among those of one run.

torchrun --nnodes=2 --nproc-per-node=8 ... -m experiments +algo=bytegrad net=none
srun --nodes=2 --ntasks-per-node=8 python -m experiments +algo=bytegrad net=none

Sources: "Environment Variables" of torch.distributed.run, "OUTPUT ENVIRONMENT VARIABLES" of srun.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from host.errors import UserError

_PORTS = range(20000, 32000)
"""Below those that Linux gives away by itself."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """One process's.

    Args:
        starter: "torchrun" or "srun".
        run_id: what names the run, through all its restarts; None: nothing does.
        rank: this worker.
        world_size: of workers.
        local_rank: this worker among those of its host.
        local_world_size: of workers on this host.
        host_index: this host.
        num_hosts: that workers are on.
        address: of the host of worker 0.
        port: of the store there.
        has_store: whether the store is there already; else worker 0 makes it.
        num_restarts: since the run began.
    """

    starter: str
    run_id: str | None
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    host_index: int
    num_hosts: int
    address: str
    port: int
    has_store: bool
    num_restarts: int


def find_assignment(environment: Mapping[str, str]) -> Assignment | None:
    """The assignment that `environment` tells of; None where this process is a run's only one.

    Raises `UserError` where it tells of one that cannot be.
    """
    try:
        if {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
            return _by_torchrun(environment)
        if int(environment.get("SLURM_STEP_NUM_TASKS", 1)) > 1:
            return _by_srun(environment)
    except (KeyError, ValueError, IndexError) as error:
        raise UserError(
            f"the environment says that this is one process of several, and not which ({error}): "
            "start it by torchrun or srun, or unset RANK and WORLD_SIZE"
        ) from error
    return None


def _by_torchrun(environment: Mapping[str, str]) -> Assignment:
    number = {name: int(value) for name, value in environment.items() if value.isdecimal()}
    run_id = environment.get("TORCHELASTIC_RUN_ID", "none")
    return Assignment(
        starter="torchrun",
        run_id=None if run_id == "none" else run_id,
        rank=number["RANK"],
        world_size=number["WORLD_SIZE"],
        local_rank=number["LOCAL_RANK"],
        local_world_size=number["LOCAL_WORLD_SIZE"],
        host_index=number["GROUP_RANK"],
        num_hosts=number["GROUP_WORLD_SIZE"],
        address=environment["MASTER_ADDR"],
        port=number["MASTER_PORT"],
        has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        num_restarts=number["TORCHELASTIC_RESTART_COUNT"],
    )


def _by_srun(environment: Mapping[str, str]) -> Assignment:
    job, step = environment["SLURM_JOB_ID"], environment["SLURM_STEP_ID"]
    host_index = int(environment["SLURM_NODEID"])
    tasks = _tasks_per_host(environment["SLURM_STEP_TASKS_PER_NODE"])
    return Assignment(
        starter="srun",
        run_id=f"slurm_{job}.{step}",
        rank=int(environment["SLURM_PROCID"]),
        world_size=int(environment["SLURM_STEP_NUM_TASKS"]),
        local_rank=int(environment["SLURM_LOCALID"]),
        local_world_size=tasks[host_index],
        host_index=host_index,
        num_hosts=int(environment["SLURM_STEP_NUM_NODES"]),
        address=environment.get("MASTER_ADDR") or _first_host(environment["SLURM_STEP_NODELIST"]),
        port=int(environment.get("MASTER_PORT") or _port(int(job), int(step))),
        has_store=False,
        num_restarts=int(environment.get("SLURM_RESTART_COUNT", 0)),
    )


def _tasks_per_host(text: str) -> list[int]:
    """Of "2(x3),1": 2, 2, 2, 1."""
    counts: list[int] = []
    for part in text.split(","):
        count, _, times = part.removesuffix(")").partition("(x")
        counts += [int(count)] * int(times or 1)
    return counts


def _first_host(hosts: str) -> str:
    """Of "rack[07-09,12]-gpu,login": rack07-gpu."""
    first = re.match(r"[^,\[]*(?:\[[^]]*\][^,\[]*)*", hosts)
    assert first is not None, "an empty match, at least"
    return re.sub(r"\[([^],-]*)[^]]*\]", r"\1", first[0])


def _port(job: int, step: int) -> int:
    """One that all processes of a step come to, and steps side by side do not share."""
    return _PORTS[(17 * job + step) % len(_PORTS)]
