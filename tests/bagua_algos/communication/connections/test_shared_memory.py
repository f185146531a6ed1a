"""All-reduce through shared memory: values, ends, and why it is not used."""

import errno
import gc
import os
import socket
import struct
import threading
import time
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from bagua_algos.communication.connections import joining, mesh
from bagua_algos.communication.connections.joining import NotShared, join
from bagua_algos.communication.connections.shared_memory import SharedMemory
from bagua_algos.communication.direct import sum_
from host.processes import fork
from netsim.links.unshare import enter_network_namespace
from tests.bagua_algos.communication.connections.threads import run

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64)


def numbers(rank: int, numel: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(rank)).to(dtype)


def mean_at(memory: SharedMemory | NotShared, x: torch.Tensor, num_workers: int) -> torch.Tensor:
    assert isinstance(memory, SharedMemory), memory
    memory.all_reduce_(x, num_workers)
    return x


def failure(memory: SharedMemory | NotShared, numel: int = 100, rank: int = 0) -> str:
    assert isinstance(memory, SharedMemory), memory
    with pytest.raises(RuntimeError) as error:
        memory.all_reduce_(numbers(rank, numel))
    return str(error.value)


@pytest.mark.parametrize("world_size", [2, 3, 4, 7])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_worker_gets_the_bits_of_the_mean_in_the_fixed_order(world_size, dtype):
    """Sizes below N, of one round, and of many; one after the other in the same memory."""
    sizes = (5, 0, 1, 1000, 333, 20_011, 4)

    def work(rank, memory):
        return [mean_at(memory, numbers(rank, n, dtype), world_size) for n in sizes]

    means = run(world_size, work)
    for index, numel in enumerate(sizes):
        rows = [numbers(rank, numel, dtype) for rank in range(world_size)]
        exact = torch.stack(rows).to(torch.complex128).mean(0)
        expected = sum_([row.clone() for row in rows]) / world_size
        precision = 4 * torch.finfo(dtype).eps
        for own in means:
            assert torch.equal(own[index], expected)
            torch.testing.assert_close(
                own[index].to(torch.complex128), exact, rtol=precision, atol=precision
            )


def test_without_a_divisor_it_is_the_sum():
    def work(rank, memory):
        memory.all_reduce_(x := torch.full((5,), 1.0 + rank))
        return x.tolist()

    assert run(3, work) == [[1.0 + 2 + 3] * 5] * 3


def test_two_at_once_do_not_disturb_each_other():
    def work(rank, memory):
        return [mean_at(memory, numbers(rank, n), 2) for n in (500, 4000) * 10]

    both: list[list] = [[], []]
    threads = [threading.Thread(target=lambda i=i: both[i].extend(run(2, work))) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for first, second in zip(both[0], both[1], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_worker_that_has_ended_is_named():
    def work(rank, memory):
        if rank == 1:
            memory.mesh.close()
            return None
        return failure(memory), failure(memory)

    for told, again in (run(3, work, members=(2, 5, 7))[rank] for rank in (0, 2)):
        assert told == "worker 5 has ended or closed the connection"
        assert again == f"not tried after: {told}"


def test_workers_that_do_not_come_are_named_after_the_limit():
    waited_for, done = set(), threading.Barrier(4, timeout=30)
    together = threading.Barrier(2, timeout=30)

    def watch(mesh):
        while not mesh.has_failed:
            waited_for.add(mesh.awaited)
            time.sleep(0.01)

    def work(rank, memory):
        if rank in (1, 3):
            done.wait()
            return None
        together.wait()
        watcher = threading.Thread(target=watch, args=[memory.mesh])
        watcher.start()
        told = failure(memory)
        watcher.join()
        done.wait()
        return told, memory.mesh.awaited

    results = run(4, work, limit_s=2)
    assert (1, 3) in waited_for
    for told, awaited in (results[0], results[2]):
        assert told == "workers 1, 3: silent for 2 s"
        assert awaited == ()


def test_who_waits_looks_for_ends_as_often_as_is_said(monkeypatch):
    monkeypatch.setattr(mesh, "_LOOKS_EVERY_S", 0.1)
    ours, others = socket.socketpair()
    with mesh.Connection.of(ours) as own, others:
        timeout = own.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.calcsize("@ll"))
        seconds, microseconds = struct.unpack("@ll", timeout)
    assert seconds + microseconds / 1e6 == pytest.approx(0.1, abs=0.02)  # as the kernel rounds it


def test_workers_that_average_different_things_are_told():
    barrier = threading.Barrier(2, timeout=30)

    def work(rank, memory):
        told = failure(memory, numel=100 + rank)
        barrier.wait()
        return told

    for rank, told in enumerate(run(2, work)):
        assert told == (
            f"worker {1 - rank} averages {101 - rank} numbers in its wait 1, and this worker "
            f"{100 + rank} numbers in its wait 1: all workers make the same calls in the same order"
        )


def test_workers_that_average_different_types_are_told():
    barrier = threading.Barrier(2, timeout=30)

    def work(rank, memory):
        with pytest.raises(RuntimeError, match=f"^worker {1 - rank} averages other numbers in its"):
            memory.all_reduce_(numbers(rank, 8, DTYPES[rank]))
        barrier.wait()

    run(2, work)


def test_one_that_comes_when_the_others_have_given_up_is_told():
    given_up, memories = threading.Event(), []

    def work(rank, memory):
        memories.append(memory)  # nor are connections closed because nobody has them
        if rank == 1:
            given_up.wait(30)
        told = failure(memory)
        given_up.set()
        return told, failure(memory)

    silent, ended = "worker 1: silent for 0.3 s", "worker 0 has ended or closed the connection"
    assert run(2, work, limit_s=0.3) == [
        (silent, f"not tried after: {silent}"),
        (ended, f"not tried after: {ended}"),
    ]


def test_one_that_is_broken_off_half_way_is_told_to_all(monkeypatch):
    """By a KeyboardInterrupt, say: the others must not take the next average for this one."""
    barrier = threading.Barrier(2, timeout=30)

    def work(rank, memory):
        if rank == 0:
            meet = memory.mesh.meet

            def meet_once(*word):
                meet(*word)
                raise KeyboardInterrupt

            memory.mesh.meet = meet_once
            with pytest.raises(KeyboardInterrupt):
                memory.all_reduce_(numbers(0, 100))
            memory.mesh.meet = meet
            told = failure(memory)
        else:
            told = failure(memory)
        barrier.wait()
        return told

    assert run(2, work) == [
        "not tried after: one before was broken off by KeyboardInterrupt",
        "worker 0 has ended or closed the connection",
    ]


def test_nothing_is_left_when_all_have_gone():
    def held() -> tuple[int, int]:
        gc.collect()
        maps = Path("/proc/self/maps").read_text()
        return len(os.listdir("/proc/self/fd")), maps.count("memfd:relaxlab")

    before = held()
    within = run(2, lambda rank, memory: (mean_at(memory, numbers(rank, 5), 2), held()))
    assert within[0][1][1] >= 2  # both files, at this worker at least
    assert held() == before


def test_a_forked_process_holds_no_connection_open():
    """A loader's process may outlive the worker that it was forked from."""

    def work(rank, memory):
        return memory

    first, second = run(2, work)
    child = fork(lambda: 0 if "forked from" in failure(first) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sleeper = fork(lambda: time.sleep(30) or 0)
    first.mesh.close()
    began_s = time.monotonic()
    assert failure(second) == "worker 0 has ended or closed the connection"
    assert time.monotonic() - began_s < 10
    os.kill(sleeper, 9)
    os.waitpid(sleeper, 0)


@pytest.mark.parametrize("call", ["memfd_create", "posix_fallocate"])
def test_one_worker_without_memory_keeps_all_from_sharing(monkeypatch, call):
    def fails_once(*arguments):
        monkeypatch.undo()
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(joining.os, call, fails_once)
    results = run(3, lambda rank, told: told)
    assert len(set(results)) == 1
    assert results[0].why.endswith("no memory to share: [Errno 12] Cannot allocate memory")
    assert results[0].why.startswith("worker ")
    assert results[0].surprises


def test_one_worker_that_cannot_be_reached_keeps_all_from_sharing(monkeypatch):
    monkeypatch.setattr(joining, "LIMIT_S", 0.5)
    real = socket.send_fds

    def fails_once(*arguments):
        monkeypatch.setattr(socket, "send_fds", real)
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(socket, "send_fds", fails_once)
    results = run(3, lambda rank, told: told)
    assert len(set(results)) == 1
    assert "no connection" in results[0].why
    assert results[0].surprises


def test_a_worker_of_another_user_is_not_let_in(monkeypatch):
    monkeypatch.setattr(joining, "LIMIT_S", 0.5)
    monkeypatch.setattr(joining.os, "geteuid", lambda: 12_345)
    told, _ = run(2, lambda rank, told: told)
    assert told.why.startswith("worker 0: no connection: ")
    assert told.surprises


def test_a_file_that_is_too_short_is_not_taken(monkeypatch):
    """What lies beyond its end would kill who reads it."""
    real = os.posix_fallocate

    def half_once(file, start, num_bytes):
        monkeypatch.undo()
        real(file, start, num_bytes // 2)

    monkeypatch.setattr(joining.os, "posix_fallocate", half_once)
    told, _ = run(2, lambda rank, told: told)
    assert told.why.endswith("no connection: a worker's file has another size")
    assert told.surprises


def test_a_stranger_is_not_taken_for_a_worker():
    """The name of a listening socket is no secret on its host."""
    real, called = joining._Own.meet, []

    def after_a_stranger(self, rank, offers):
        if rank == 0:
            with socket.socket(socket.AF_UNIX) as stranger:
                stranger.connect(f"\0{offers[0].name}")
                stranger.sendall(b"x" * 16)
                called.append(rank)
        return real(self, rank, offers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining._Own, "meet", after_a_stranger)
        means = run(2, lambda rank, memory: mean_at(memory, numbers(rank, 5), 2))
    assert called == [0]
    assert torch.equal(means[0], means[1])


def test_a_worker_alone_shares_with_nobody():
    [told] = run(1, lambda rank, told: told)
    assert told == NotShared("a worker alone has nobody to share memory with", surprises=False)


@pytest.mark.root
def test_workers_in_network_namespaces_of_their_own_do_not_share():
    """They stand for machines apart, as in all runs of the app over a shaped network."""
    ends = [Pipe() for _ in range(3)]  # between the workers, and from each of them

    def work(rank: int) -> int:
        if rank == 1:
            enter_network_namespace()
        other = ends[0][rank]

        def all_say(own):
            other.send(own)
            return [own, other.recv()] if rank == 0 else [other.recv(), own]

        ends[1 + rank][1].send(tuple(join(rank, (0, 1), all_say, 10)))
        return 0

    pids = [fork(lambda rank=rank: work(rank)) for rank in (0, 1)]
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0, 0]
    why = "workers 0 and 1 are on different hosts or network namespaces"
    assert [ends[1 + rank][0].recv() for rank in (0, 1)] == [(why, False)] * 2
    for end in (end for pair in ends for end in pair):
        end.close()
