"""The ways for two workers to all-reduce by NCCL: its own sockets, or bagua_net.

On one GPU, NCCL refuses two workers of one host. NCCL_HOSTID makes each a host of its own: the
check compares hashes of that (NVIDIA/nccl 2.18 to 2.30, src/init.cc and src/misc/utils.cc). Their
kernels take turns on the GPU.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from experiments.real.nccl import (
    connections,
    log_environment,
    nccl_environment,
    plugin_environment,
    read_log,
    socket_environment,
)
from host.gpus import placement
from netsim.links.netlink import INTERFACE

NUM_WORKERS = 2
STREAMS = (1, 8)
PLUGINS = {None: "own sockets", "bagua": "bagua_net"}
"""By NCCL's name."""


class Transport(Protocol):
    """A way for two workers to all-reduce."""

    @property
    def name(self) -> str:
        """In records and tables."""
        ...

    @property
    def backend(self) -> str:
        """Of torch.distributed."""
        ...

    def environment(self, rank: int, folder: Path) -> Mapping[str, str]:
        """What a worker sets before it meets the other; logs go to `folder`."""
        ...

    def check(self, folder: Path) -> None:
        """Raise `ValueError` where the logs say that something else was used."""
        ...


@dataclass(frozen=True, kw_only=True)
class NcclTransport:
    """NCCL with so many connections a channel, and one channel: its own sockets, or a plugin.

    Congestion control is the system's for both, and all-reduces are rings, in which each of two
    workers sends as many bytes as the tensor has.
    """

    streams: int
    net_plugin: str | None = None
    is_shared: bool = False

    backend = "nccl"

    @property
    def name(self) -> str:
        """Such as "own sockets, 8"."""
        return f"{PLUGINS[self.net_plugin]}, {self.streams}"

    def environment(self, rank: int, folder: Path) -> Mapping[str, str]:
        """Of one worker. Raises `UserError` where the plugin cannot be built."""
        return {
            **nccl_environment(rank, is_shared=self.is_shared, interface=INTERFACE),
            **log_environment(folder),
            **plugin_environment(self.net_plugin),
            **(socket_environment(self.streams) if self.net_plugin is None else {}),
            "BAGUA_NET_STREAMS": str(self.streams),
            "BAGUA_NET_CONGESTION": "system",
            "NCCL_ALGO": "Ring",
            "NCCL_MIN_CTAS": "1",
            "NCCL_MAX_CTAS": "1",
        }

    def check(self, folder: Path) -> None:
        """NCCL goes on by something else where it cannot have what it was told to."""
        connections(read_log(folder), self.net_plugin)


def nccl_transports() -> list[NcclTransport]:
    """Those that are compared: with as many streams, first the own sockets. Raises `UserError`
    where there is no GPU.
    """
    is_shared = placement(NUM_WORKERS).is_shared
    return [
        NcclTransport(streams=streams, net_plugin=net_plugin, is_shared=is_shared)
        for streams in STREAMS
        for net_plugin in PLUGINS
    ]
