"""What MSG_ZEROCOPY would save: one TCP connection of two workers, with it and without, in turn.

    python -m bagua_net.zero_copy net=none [net.KEY=VALUE...] [rounds=9] [mbytes=256]

With it the kernel sends from the program's own pages, and says later when they are free; it also
says how often it copied after all. Both ways hand over 512 KiB at once. Processor time is of both
workers together.
"""

import errno
import select
import socket
import struct
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import median
from typing import Any

from host import commands, markdown
from host.errors import UserError
from netsim.conditions.command_line import read_words
from netsim.conditions.condition import NetworkCondition
from netsim.errors import NamespaceError, ProbeError
from netsim.links.namespaces import Hub
from netsim.proof.temporary_network import run_workers

WAYS = ("copies", "zero-copy")
_HANDED_OVER = 512 << 10
_BUFFER = 64 << 20
_PORT = 29_541
_LIMIT_S = 60
_SO_ZEROCOPY, _MSG_ZEROCOPY = 60, 0x4000000
_FROM_ZEROCOPY, _COPIED = 5, 1
_EXTENDED_ERROR = struct.Struct("=IBBBBII")  # sock_extended_err of linux/errqueue.h


def main() -> int:
    """Measure and print; returns the exit code."""
    if sys.argv[1:] in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    defaults = {"rounds": "9", "mbytes": "256"}
    try:
        condition, values = read_words(sys.argv[1:], defaults, command="bagua_net.zero_copy")
        rounds, num_bytes = int(values["rounds"]), int(values["mbytes"]) << 20
        if rounds < 1 or num_bytes < 1:
            raise ValueError("rounds and mbytes must be at least 1.")
        samples = measure(condition, rounds, num_bytes)
    except (ValueError, NamespaceError, ProbeError) as error:
        raise UserError(str(error)) from error
    print(table(samples, num_bytes))
    return 0


def measure(
    condition: NetworkCondition, rounds: int, num_bytes: int
) -> dict[str, list[dict[str, float]]]:
    """By way, of each round: `seconds`, `cpu_s` and the share of the messages that was `copied`.

    Raises:
        NamespaceError, ProbeError: if the network cannot be made, or a transfer fails.
    """

    def work(hub: Hub, rank: int) -> list[dict[str, Any]]:
        try:
            if rank == 0:
                return _receive_all(hub.address(0), rounds * len(WAYS))
            return [_send(hub.address(0), way, num_bytes) for _ in range(rounds) for way in WAYS]
        except OSError as error:
            raise ProbeError(f"worker {rank}: {error}") from error

    received, sent = run_workers(condition, 2, work).values
    samples = defaultdict(list)
    for end, start in zip(received, sent, strict=True):
        cpu_s = end["cpu_s"] + start["cpu_s"]
        one = {"seconds": end["at_s"] - start["at_s"], "cpu_s": cpu_s, "copied": start["copied"]}
        samples[start["way"]].append(one)
    return dict(samples)


def table(samples: Mapping[str, Sequence[Mapping[str, float]]], num_bytes: int) -> str:
    """One row a way: rates with their spread, processor time, the share that was copied after
    all.
    """
    rows = []
    for way, measured in samples.items():
        mbit = [8e-6 * num_bytes / one["seconds"] for one in measured]
        cpu_s_per_gb = [1e9 * one["cpu_s"] / num_bytes for one in measured]
        row = (
            way,
            f"{median(mbit):.4g} ({min(mbit):.4g} to {max(mbit):.4g})",
            f"{median(cpu_s_per_gb):.2f} ({min(cpu_s_per_gb):.2f} to {max(cpu_s_per_gb):.2f})",
            f"{100 * median([one['copied'] for one in measured]):.0f} %",
        )
        rows.append(row)
    return markdown.table(("way", "Mbit/s", "processor s/GB", "copied"), rows, "lrrr")


def _receive_all(address: str, number: int) -> list[dict[str, Any]]:
    space, ends = bytearray(_BUFFER), []
    with socket.create_server((address, _PORT)) as server:
        server.settimeout(_LIMIT_S)
        for _ in range(number):
            connection, _ = server.accept()
            with connection:
                connection.settimeout(_LIMIT_S)
                before_s, got = time.process_time(), 0
                while count := connection.recv_into(memoryview(space)[got % _BUFFER :]):
                    got += count
                cpu_s = time.process_time() - before_s
                ends.append({"at_s": time.monotonic(), "cpu_s": cpu_s})
    return ends


def _send(address: str, way: str, num_bytes: int) -> dict[str, Any]:
    data = memoryview(bytes(1) * _BUFFER)
    is_zero_copy = way == "zero-copy"
    with _connected(address) as stream:
        # By the kernel: with a limit of Python's own a read of notices would wait for data.
        stream.settimeout(None)
        limit = struct.pack("@ll", _LIMIT_S, 0)
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        if is_zero_copy:
            stream.setsockopt(socket.SOL_SOCKET, _SO_ZEROCOPY, 1)
        flags = _MSG_ZEROCOPY if is_zero_copy else 0
        began = {"way": way, "at_s": time.monotonic()}
        before_s, sent, num_calls, notices = time.process_time(), 0, 0, [0, 0]
        while sent < num_bytes:
            begin = sent % _BUFFER
            part = data[begin : begin + min(_HANDED_OVER, num_bytes - sent)]
            try:
                sent += stream.send(part, flags)
                num_calls += is_zero_copy
            except OSError as error:
                if not is_zero_copy or error.errno != errno.ENOBUFS:  # too many await a notice
                    raise
                _await_notice(stream)
            _read_notices(stream, notices)
        until_s = time.monotonic() + _LIMIT_S
        while notices[0] < num_calls and time.monotonic() < until_s:
            _await_notice(stream)
            _read_notices(stream, notices)
        cpu_s = time.process_time() - before_s
    return began | {"cpu_s": cpu_s, "copied": notices[1] / max(num_calls, 1)}


def _connected(address: str) -> socket.socket:
    until_s = time.monotonic() + _LIMIT_S
    while True:
        try:
            return socket.create_connection((address, _PORT), _LIMIT_S)
        except ConnectionRefusedError:  # the receiver does not listen yet
            if time.monotonic() > until_s:
                raise
            time.sleep(0.01)


def _await_notice(stream: socket.socket) -> None:
    poll = select.poll()
    poll.register(stream, 0)  # POLLERR always counts
    poll.poll(1000)


def _read_notices(stream: socket.socket, notices: list[int]) -> None:
    """Add the calls that the kernel is done with, and those of them that it copied."""
    with suppress(BlockingIOError):
        while True:
            _, ancillary, _, _ = stream.recvmsg(1, 512, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
            for _, _, payload in ancillary:
                _, origin, _, code, _, first, last = _EXTENDED_ERROR.unpack_from(payload)
                if origin == _FROM_ZEROCOPY:
                    number = last - first + 1
                    notices[0] += number
                    notices[1] += number * (code == _COPIED)


if __name__ == "__main__":
    commands.run(main)
