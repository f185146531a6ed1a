"""NCCL made to cross the shaped links.

NCCL would join the GPUs of one host by NVLink, PCIe or shared memory. Here every worker has a link
of its own, so all that is switched off and sockets are left, in the worker's network namespace. Two
workers on one GPU it refuses, unless each says that it is a host of its own (NCCL_HOSTID, since
NCCL 2.18).
"""

import re
from collections import Counter
from pathlib import Path

from bagua_net import library

UNWATCHED = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}
"""Torch would kill the process for a collective that is late since it was *enqueued*, and not say
whom it waits for. `experiments.training.steps_ahead` notices, and tells.
"""


SOCKETS = "NET/Socket"
"""NCCL's word for a connection through the worker's own network namespace."""
PLUGIN = "NET/bagua"
"""And for one through bagua_net."""


def nccl_environment(rank: int, *, is_shared: bool, interface: str) -> dict[str, str]:
    """What a worker's process sets before its first communicator, for its traffic to leave by
    `interface` alone.

    Source: NVIDIA/nccl 2.18 to 2.30, environment variables and src/misc/utils.cc (getHostHash).
    """
    environment = {
        "NCCL_NET": "Socket",
        "NCCL_IB_DISABLE": "1",
        "NCCL_SOCKET_IFNAME": interface,
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MNNVL_ENABLE": "0",
        **UNWATCHED,
    }
    if is_shared:
        # Kernels of several processes take turns on a GPU: small ones leave room for others.
        environment |= {"NCCL_HOSTID": f"relaxlab-worker-{rank}", "NCCL_MAX_CTAS": "4"}
    return environment


def plugin_environment(net_plugin: str | None) -> dict[str, str]:
    """What has NCCL communicate through this plugin of ours; nothing for None.

    NCCL_NET names it, so that NCCL refuses to go on by its own sockets where it does not load.
    """
    if net_plugin is None:
        return {}
    return {"NCCL_NET_PLUGIN": str(library.build()), "NCCL_NET": net_plugin}


def socket_environment(streams: int) -> dict[str, str]:
    """What has NCCL's own sockets cut a message into equal parts, for so many connections.

    Source: NVIDIA/nccl 2.20 to 2.30, src/transport/net_socket.cc.
    """
    return {"NCCL_SOCKET_NTHREADS": "1", "NCCL_NSOCKS_PERTHREAD": str(streams)}


def log_environment(folder: Path) -> dict[str, str]:
    """What has NCCL say how it connects, to a file in `folder` for each process."""
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(folder / "nccl.%p.log")}


def read_log(folder: Path) -> str:
    """What all processes have said there."""
    return "\n".join(file.read_text(errors="replace") for file in folder.glob("nccl.*.log"))


def connections(log: str, net_plugin: str | None) -> dict[str, int]:
    """How many connections each transport of NCCL's has.

    Raises:
        ValueError: NCCL used another one than its sockets, or this plugin of ours; one sentence.
    """
    if net_plugin is not None and f"Assigned NET plugin {net_plugin}" not in log:
        raise ValueError("NCCL's log does not say that it assigned the plugin")
    used = Counter(re.findall(r"Channel .* via (\w+(?:/\w+)?)", log))
    asked = SOCKETS if net_plugin is None else PLUGIN
    if set(used) != {asked}:
        raise ValueError(f"NCCL used {dict(used)}, not {asked} alone")
    return dict(used)
