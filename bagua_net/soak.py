"""Sends gigabytes in messages of odd sizes and compares every byte: a soak of the plugin.

    python -m bagua_net.soak net=none gbytes=10 [net.KEY=VALUE...] [seed=0]

Both workers draw the same bytes and sizes from the seed. Four messages are in flight, as NCCL has
them. Ends with exit code 1 at the first byte that differs, or where a transfer fails.
"""

import ctypes
import math
import os
import random
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bagua_net.library import build
from bagua_net.table import HANDLE_BYTES, Plugin, PluginError
from host import commands
from host.errors import Failure, UserError
from netsim.conditions.command_line import read_words
from netsim.conditions.condition import NetworkCondition
from netsim.errors import NamespaceError, ProbeError
from netsim.links.namespaces import Hub
from netsim.proof.temporary_network import run_workers

IN_FLIGHT = 4
LARGEST = 4 << 20
_LIMIT_S = 600
_INTERFACE = "eth0"


def main() -> int:
    """Soak, and print what was sent; returns the exit code."""
    if sys.argv[1:] in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    defaults = {"gbytes": "10", "seed": "0"}
    try:
        condition, values = read_words(sys.argv[1:], defaults, command="bagua_net.soak")
        gbytes, seed = float(values["gbytes"]), int(values["seed"])
        if not 1e-9 <= gbytes < math.inf:
            raise ValueError("gbytes must be a finite number above 0: 1e-9 is one byte.")
        num_bytes = round(1e9 * gbytes)
        seconds = soak(condition, num_bytes, seed)
    except (ValueError, NamespaceError) as error:
        raise UserError(str(error)) from error
    except ProbeError as error:
        raise Failure(str(error)) from error
    rate = 8e-6 * num_bytes / seconds
    print(f"{num_bytes / 1e9:g} GB, every byte as it was sent, {rate:.4g} Mbit/s")
    return 0


def soak(condition: NetworkCondition, num_bytes: int, seed: int) -> float:
    """Send at least so many bytes over a network; returns the seconds that it took.

    Raises:
        ProbeError: if a byte differs, or a transfer fails.
        NamespaceError: if the network cannot be made.
    """
    library = build()
    ends = socket.socketpair()

    def work(hub: Hub, rank: int) -> float:
        os.environ |= {"NCCL_SOCKET_IFNAME": _INTERFACE}
        ends[1 - rank].close()
        start_s = time.monotonic()
        try:
            (_receive if rank == 0 else _send)(library, ends[rank], num_bytes, seed)
        except (OSError, PluginError) as error:
            raise ProbeError(f"worker {rank}: {error}") from error
        return time.monotonic() - start_s

    try:
        return max(run_workers(condition, 2, work).values)
    finally:
        for end in ends:
            end.close()


def _messages(num_bytes: int, seed: int) -> Iterator[tuple[int, int]]:
    """The offset and size of each message in `_pattern(seed)`."""
    draw = random.Random(seed)
    while num_bytes > 0:
        size = draw.choice((0, 1, 1448, draw.randrange(65_536), draw.randrange(LARGEST)))
        yield draw.randrange(LARGEST), size
        num_bytes -= size


def _pattern(seed: int) -> bytes:
    return random.Random(seed).randbytes(2 * LARGEST)


def _receive(library: Path, channel: socket.socket, num_bytes: int, seed: int) -> None:
    plugin, pattern = Plugin(library), memoryview(_pattern(seed))
    handle, listener = plugin.listen()
    channel.sendall(handle)
    comm = plugin.accept(listener, _LIMIT_S)
    buffers = [(ctypes.c_char * LARGEST)() for _ in range(IN_FLIGHT)]
    pending: list[tuple[int, int, int, int]] = []

    def finish() -> None:
        request, number, offset, size = pending.pop(0)
        got = plugin.wait(request, _LIMIT_S)
        came = memoryview(buffers[number % IN_FLIGHT]).cast("B")[:size]
        if got != size or came != pattern[offset : offset + size]:
            raise ProbeError(f"Message {number} of {size} bytes is not as it was sent.")

    for number, (offset, size) in enumerate(_messages(num_bytes, seed)):
        if len(pending) == IN_FLIGHT:
            finish()
        request = plugin.irecv(comm, buffers[number % IN_FLIGHT])
        assert request is not None
        pending.append((request, number, offset, size))
    while pending:
        finish()
    plugin.close("receive", comm)
    plugin.close("listen", listener)


def _send(library: Path, channel: socket.socket, num_bytes: int, seed: int) -> None:
    plugin = Plugin(library)
    data = (ctypes.c_char * (2 * LARGEST)).from_buffer_copy(_pattern(seed))
    comm = plugin.connect(channel.recv(HANDLE_BYTES), _LIMIT_S)
    pending: list[int] = []
    for offset, size in _messages(num_bytes, seed):
        if len(pending) == IN_FLIGHT:
            plugin.wait(pending.pop(0), _LIMIT_S)
        request = plugin.isend(comm, ctypes.byref(data, offset), size)
        assert request is not None
        pending.append(request)
    for request in pending:
        plugin.wait(request, _LIMIT_S)
    plugin.close("send", comm)


if __name__ == "__main__":
    commands.run(main)
