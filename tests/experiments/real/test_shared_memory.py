"""Means through memory that the workers of one host share; each worker is a thread here."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from bagua_algos.communication.communicator import CommunicationError
from bagua_algos.communication.stacked import StackedCommunicator
from experiments.real.shared_memory import HostMemory

WORKERS = 3


@pytest.fixture
def file():
    file = os.memfd_create("evaluations")
    yield file
    os.close(file)


def worker(file, rank, limit_s=60):
    return HostMemory(file, rank=rank, world_size=WORKERS, limit_s=limit_s)


def on_all(file, run):
    """What `run(memory, rank)` returns on each worker, all at the same time."""
    with ThreadPoolExecutor(WORKERS) as threads:
        return list(threads.map(lambda rank: run(worker(file, rank), rank), range(WORKERS)))


def rows(*shape, dtype):
    chance = torch.Generator().manual_seed(0)
    return (100 * torch.randn(WORKERS, *shape, generator=chance)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1,), (2,), (5, 7), (100_003,)])
def test_means_are_those_of_simulated_workers_bit_for_bit(file, shape, dtype):
    x_w, expected_w = rows(*shape, dtype=dtype), rows(*shape, dtype=dtype)
    StackedCommunicator(WORKERS).all_reduce_mean_(expected_w)
    on_all(file, lambda memory, rank: memory.all_reduce_mean_(x_w[rank : rank + 1]))
    assert torch.equal(x_w, expected_w)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_a_broadcast_is_the_sources_row(file, dtype):
    x_w = rows(4, 3, dtype=dtype)
    source = x_w[2].clone()
    on_all(file, lambda memory, rank: memory.broadcast_(x_w[rank : rank + 1], source=2))
    assert torch.equal(x_w, source.expand_as(x_w))


def test_one_operation_after_another_of_any_size_and_workers_that_dawdle(file):
    sizes = [3, 50_000, 7, 1, 120_000, 50_000] * 20

    def run(memory, rank):
        means = []
        for i, size in enumerate(sizes):
            if i % WORKERS == rank:
                threading.Event().wait(0.001)
            x_w = torch.full((1, size), float(i + rank))
            memory.all_reduce_mean_(x_w)
            means.append((x_w.min().item(), x_w.max().item()))
        return means

    expected = [(i + 1, i + 1) for i in range(len(sizes))]
    assert on_all(file, run) == [expected] * WORKERS


def test_nothing_is_an_average_of_nothing(file):
    """Such as a model's empty buffers."""

    def run(memory, rank):
        memory.all_reduce_mean_(torch.empty(1, 0))
        memory.broadcast_(torch.empty(1, 0, 3), source=2)
        memory.all_reduce_mean_(x_w := torch.full((1, 2), float(rank)))
        return x_w.tolist()

    assert on_all(file, run) == [[[1.0, 1.0]]] * WORKERS


def test_everybody_sees_who_has_come_to_an_evaluation(file):
    first, second, third = (worker(file, rank) for rank in range(WORKERS))
    assert not any(memory.is_complete(5) for memory in (first, second, third))
    first.come(5)
    third.come(9)
    assert not first.is_complete(5)
    second.come(7)
    assert all(memory.is_complete(5) for memory in (first, second, third))
    assert not second.is_complete(6)
    x_w = rows(3, dtype=torch.float32)  # and operations do not disturb it
    on_all(file, lambda memory, rank: memory.all_reduce_mean_(x_w[rank : rank + 1]))
    assert first.is_complete(5)
    assert not first.is_complete(6)


def test_who_does_not_come_is_named(file):
    both = threading.Barrier(2, timeout=60)

    def run(memory):
        both.wait()
        memory.all_reduce_mean_(torch.ones(1, 2))

    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(run, worker(file, rank, limit_s=2)) for rank in (0, 2)]
    for rank, wait in zip((0, 2), waits, strict=True):
        with pytest.raises(CommunicationError, match=rf"worker {rank}: .* 2 s: worker 1$"):
            wait.result()
