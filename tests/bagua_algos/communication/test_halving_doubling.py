"""Halving and doubling, and all-reduces without it, among threads that hand each other tensors."""

from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import pytest
import torch

from bagua_algos.communication.direct import direct_
from bagua_algos.communication.halving_doubling import halving_doubling_

LIMIT_S = 10


def all_reduced(
    x_N: torch.Tensor, all_reduce_=halving_doubling_
) -> tuple[list[torch.Tensor], list[list[int]]]:
    """What each worker ends with, and the sizes of what it sent."""
    num_workers = len(x_N)
    ways = {(i, j): Queue() for i in range(num_workers) for j in range(num_workers)}
    sent = [[] for _ in x_N]

    def work(rank: int) -> torch.Tensor:
        def send_and_receive(outgoing, incoming):
            for peer, x in outgoing.items():
                sent[rank].append(x.numel())
                ways[rank, peer].put(x.clone())
            for peer, x in incoming.items():
                x.copy_(ways[peer, rank].get(timeout=LIMIT_S))

        x = x_N[rank].clone()
        all_reduce_(x, rank, num_workers, send_and_receive)
        return x

    with ThreadPoolExecutor(num_workers) as threads:
        return list(threads.map(work, range(num_workers))), sent


@pytest.mark.parametrize("num_workers", range(1, 18))
@pytest.mark.parametrize("num_elements", [0, 1, 3, 16, 1000])
def test_every_worker_gets_the_same_sum(num_workers, num_elements):
    x_N = torch.randn(num_workers, num_elements, generator=torch.Generator().manual_seed(0))
    sums, _ = all_reduced(x_N)
    for ours in sums:
        torch.testing.assert_close(ours, x_N.double().sum(0).float(), rtol=1e-5, atol=1e-5)
        assert torch.equal(ours, sums[0])


@pytest.mark.parametrize("num_workers", [2, 4, 8, 16])
def test_powers_of_two_send_as_little_as_a_ring_in_fewer_steps(num_workers):
    _, sent = all_reduced(torch.zeros(num_workers, 64 * num_workers))
    for sizes in sent:
        assert sum(sizes) == 2 * (num_workers - 1) * 64
        assert len(sizes) == 2 * (num_workers.bit_length() - 1)


@pytest.mark.parametrize("all_reduce_", [halving_doubling_, direct_])
def test_the_sum_does_not_depend_on_where_an_element_is(all_reduce_):
    """So that no cut into parts can change it."""
    x_N = torch.randn(6, 1, generator=torch.Generator().manual_seed(1))
    sums, _ = all_reduced(x_N.expand(6, 37).contiguous(), all_reduce_)
    assert len(sums[0].unique()) == 1


@pytest.mark.parametrize("num_workers", range(1, 18))
@pytest.mark.parametrize("num_elements", [0, 1, 16, 1000])
def test_directly_every_worker_gets_the_same_bits_as_by_halving_and_doubling(
    num_workers, num_elements
):
    x_N = torch.randn(num_workers, num_elements, generator=torch.Generator().manual_seed(0))
    sums, sent = all_reduced(x_N, direct_)
    by_halves, _ = all_reduced(x_N)
    for ours, theirs in zip(sums, by_halves, strict=True):
        assert torch.equal(ours, theirs)
    total = 2 * (num_workers - 1) * num_elements
    assert sum(map(sum, sent)) == total
