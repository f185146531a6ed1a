"""Workers who are to share memory, of whom one does not do its part: all are told, and nothing is
left.
"""

import socket
import struct
import threading

import pytest

from bagua_algos.communication.connections import joining
from bagua_algos.communication.connections.joining import NotShared
from bagua_algos.communication.connections.shared_memory import SharedMemory
from tests.bagua_algos.communication.connections.threads import run


def told_to_all(num_workers: int = 2) -> str:
    """Why workers do not share memory, by all of them."""
    told = run(num_workers, lambda rank, told: told)
    assert all(isinstance(each, NotShared) and each.surprises for each in told), told
    assert len(set(told)) == 1
    return told[0].why


def test_where_one_cannot_map_a_file_all_close_their_connections(monkeypatch):
    """Python warns of a socket that is not closed, and a warning fails a test. Who still calls the
    one that has given up may give up before it has called the third, who then waits.
    """
    monkeypatch.setattr(joining, "LIMIT_S", 1.0)
    real, fails = joining.mmap.mmap, iter([True])

    def fails_once(*arguments):
        if next(fails, False):
            raise OSError("no address is left")
        return real(*arguments)

    monkeypatch.setattr(joining.mmap, "mmap", fails_once)
    assert ": no connection: " in told_to_all(3)


def test_one_who_calls_and_says_nothing_is_not_waited_for_without_an_end(monkeypatch):
    monkeypatch.setattr(joining, "LIMIT_S", 0.3)
    real, stranger = joining._Own.meet, socket.socket(socket.AF_UNIX)
    has_called, has_given_up = threading.Event(), threading.Event()

    def beside_a_stranger(self, rank, offers):
        try:
            if rank == 0:
                stranger.connect(f"\0{offers[0].name}")
                has_called.set()
            has_called.wait(10)
            return real(self, rank, offers)
        finally:
            has_given_up.set() if rank == 0 else has_given_up.wait(5)
            stranger.close()

    monkeypatch.setattr(joining._Own, "meet", beside_a_stranger)
    assert told_to_all() == "worker 0: no connection: timed out"


@pytest.mark.parametrize("silent", [0, 1])
def test_one_who_does_not_hand_over_its_file_is_not_waited_for_without_an_end(monkeypatch, silent):
    """Worker 1 calls worker 0."""
    monkeypatch.setattr(joining, "LIMIT_S", 0.3)
    real = socket.send_fds

    def is_silent(peer, *words):
        rank = 0 if peer.getsockname() else 1
        return 0 if rank == silent else real(peer, *words)

    monkeypatch.setattr(socket, "send_fds", is_silent)
    assert told_to_all().endswith(": no connection: timed out")


def test_one_user_in_several_groups_is_one_user(monkeypatch):
    real = socket.socket.getsockopt

    def in_another_group(self, level, option, *size):
        words = real(self, level, option, *size)
        if option != socket.SO_PEERCRED:
            return words
        process, user, group = struct.unpack("3i", words)
        return struct.pack("3i", process, user, group + 1)

    monkeypatch.setattr(socket.socket, "getsockopt", in_another_group)
    assert all(isinstance(joined, SharedMemory) for joined in run(2, lambda rank, joined: joined))
