import numpy as np
import pytest

from bagua_algos.communication.topology import (
    Complete,
    Exchange,
    Exponential,
    Mixing,
    RandomMatching,
    Ring,
    ShiftOne,
    StaticExponential,
)
from tests.bagua_algos.gossip import Star

ALL = [Complete(), Ring(), Exponential(), StaticExponential(), ShiftOne(), RandomMatching(seed=3)]
SIZES = [1, 2, 3, 4, 5, 7, 8, 12]
STEPS = range(9)


def cases(topologies):
    """All with all numbers of workers that they allow."""
    return [
        pytest.param(topology, size, id=f"{type(topology).__name__}-{size}")
        for topology in topologies
        for size in SIZES
        if not (isinstance(topology, ShiftOne) and size % 2)
        if not (isinstance(topology, Star) and size == 1)
    ]


def matrices(topology, world_size):
    return [topology.mixing(step, world_size).matrix() for step in STEPS]


@pytest.mark.parametrize(("topology", "world_size"), cases([*ALL, Star()]))
def test_what_a_topology_says_of_itself_holds(topology, world_size):
    all_matrices = matrices(topology, world_size)
    for A in all_matrices:
        assert (A >= 0).all()
        np.testing.assert_allclose(A.sum(0), 1)
        if topology.is_doubly_stochastic:
            np.testing.assert_allclose(A.sum(1), 1)
        if topology.is_symmetric:
            np.testing.assert_array_equal(A, A.T)
        if topology.is_static:
            np.testing.assert_array_equal(A, all_matrices[0])


@pytest.mark.parametrize("topology", ALL)
def test_what_it_does_not_say_of_itself_does_not_hold_either(topology):
    all_matrices = matrices(topology, 8)
    assert topology.is_symmetric == all(np.array_equal(A, A.T) for A in all_matrices)
    assert topology.is_static == all(np.array_equal(A, all_matrices[0]) for A in all_matrices)


@pytest.mark.parametrize(("topology", "world_size"), cases(ALL))
def test_everyone_is_heard_of_by_everyone_in_time(topology, world_size):
    product = np.eye(world_size)
    for step in range(200):
        product = topology.mixing(step, world_size).matrix() @ product
    np.testing.assert_allclose(product, 1 / world_size, atol=1e-3)


@pytest.mark.parametrize("world_size", [2, 4, 8, 16])
def test_exponential_averages_exactly_in_log2_steps(world_size):
    product = np.eye(world_size)
    for step in range(world_size.bit_length() - 1):
        product = Exponential().mixing(step + 5, world_size).matrix() @ product
    np.testing.assert_array_equal(product, np.full((world_size, world_size), 1 / world_size))


def test_shift_one_is_baguas_formula():
    n = 6
    for s in STEPS:
        (exchange,) = ShiftOne().mixing(s, n).exchanges
        for rank, peer in enumerate(exchange.peers):
            if rank < n // 2:
                assert peer == ((s + rank) % (n // 2)) + n // 2
            else:
                assert peer == (rank - n // 2 - s) % (n // 2)


@pytest.mark.parametrize("world_size", [1, 3, 7])
def test_shift_one_refuses_an_odd_number_of_workers(world_size):
    with pytest.raises(ValueError, match=f"even number of them, got {world_size}"):
        ShiftOne().mixing(0, world_size)


def test_random_matching_pairs_all_but_one_of_an_odd_number_and_follows_its_seed():
    def peers(seed, world_size):
        topology = RandomMatching(seed=seed)
        return [topology.mixing(step, world_size).exchanges[0].peers for step in STEPS]

    assert peers(1, 8) == peers(1, 8)
    assert peers(1, 8) != peers(2, 8)
    assert len(set(peers(1, 8))) > 5
    for world_size, alone in ((8, 0), (7, 1)):
        for of_step in peers(1, world_size):
            assert all(of_step[peer] == rank for rank, peer in enumerate(of_step))
            assert sum(peer == rank for rank, peer in enumerate(of_step)) == alone
    with pytest.raises(ValueError, match="seed must be a whole number of at least 0, got -1"):
        RandomMatching(seed=-1)


def test_weights_on_a_ring():
    def row(world_size):
        return Ring().mixing(0, world_size).matrix()[0].tolist()

    third = 1 / 3
    assert row(1) == [1]
    assert row(2) == [1 / 2, 1 / 2]
    assert row(3) == [third, third, third]
    assert row(5) == [third, third, 0, 0, third]


def test_a_mixing_that_loses_mass_or_repeats_a_receiver_is_refused():
    with pytest.raises(ValueError, match=r"column .* must sum to 1, got \[1.0, 0.5\]"):
        Mixing(self_weights=(1.0, 0.5))
    with pytest.raises(ValueError, match="permutation"):
        Mixing(self_weights=(0.5, 0.5), exchanges=(Exchange(peers=(1, 1), weights=(0.5, 0.5)),))


def test_weights_may_be_whole_numbers():
    swap = Mixing(self_weights=(0, 0), exchanges=(Exchange(peers=(1, 0), weights=(1, 1)),))
    assert swap.matrix().tolist() == [[0.0, 1.0], [1.0, 0.0]]


def test_a_mixing_of_many_workers_needs_no_matrix():
    of_many = Ring().mixing(0, 200_000)  # the matrix would take 320 GB
    assert not of_many.averages_all
    with pytest.raises(ValueError, match="must sum to 1"):
        Mixing(self_weights=(0.5, 0.5), exchanges=(Exchange(peers=(1, 0), weights=(0.5, 0.4)),))
