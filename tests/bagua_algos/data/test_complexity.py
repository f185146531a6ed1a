"""Complexities are measured once, in shares, and are the same on all workers."""

import numpy as np
import pytest
import torch

from bagua_algos.data import DiskStore, LoadBalancingDistributedSampler, measure_complexity
from tests.bagua_algos.data.examples import Sequences
from tests.bagua_algos.gloo import run_program_once

LENGTHS = [float(len(example)) for example in Sequences().examples]


def longer(example: torch.Tensor) -> float:
    return len(example) + 1.0


def test_a_function_is_asked_once_for_each_example():
    data = Sequences()
    assert measure_complexity(data, len).tolist() == LENGTHS
    assert data.num_read == 50
    sampler = LoadBalancingDistributedSampler(data, len, 2, 0)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        list(sampler)
    assert data.num_read == 100 and sampler.costs.tolist() == LENGTHS


@pytest.mark.parametrize("num_processes", [0, 2])
def test_measuring_takes_no_random_number_from_the_script(num_processes):
    before = torch.get_rng_state()
    measure_complexity(Sequences(), len, num_processes=num_processes)
    assert torch.get_rng_state().equal(before)


def test_processes_measure_in_parallel():
    data = Sequences()
    assert measure_complexity(data, len, num_processes=2).tolist() == LENGTHS
    assert data.num_read == 0, "here; the processes have read"


def test_what_was_measured_is_kept_for_the_same_data_and_function(tmp_path):
    store = DiskStore(folder=tmp_path)
    for data in (Sequences(), Sequences()):
        assert measure_complexity(data, len, cache=store).tolist() == LENGTHS
    assert data.num_read == 0
    assert measure_complexity(data, longer, cache=store).tolist() == [1 + n for n in LENGTHS]
    assert data.num_read == 50
    other = Sequences(num_examples=49)
    assert len(measure_complexity(other, len, cache=store)) == other.num_read == 49
    store.close()


@pytest.mark.parametrize(
    "column",
    [
        *(LENGTHS, tuple(LENGTHS), np.array(LENGTHS, np.int32), torch.tensor(LENGTHS)),
        *(torch.tensor(LENGTHS).bfloat16(), torch.tensor(LENGTHS, requires_grad=True)),
    ],
    ids=["list", "tuple", "array", "tensor", "bfloat16", "with gradient"],
)
def test_columns(column):
    data = Sequences()
    assert LoadBalancingDistributedSampler(data, column, 2, 0).costs.tolist() == LENGTHS
    assert data.num_read == 0


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0])
def test_what_is_no_cost_is_refused(cost):
    with pytest.raises(ValueError, match=f"the complexity of example 7 is {cost}: give finite"):
        LoadBalancingDistributedSampler(Sequences(), [*LENGTHS[:7], cost, *LENGTHS[8:]], 2, 0)


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    return run_program_once(tmp_path_factory, "tests.bagua_algos.data.loading_workers", 4)


def test_workers_measure_a_share_each_and_keep_all(workers):
    for rank, worker in enumerate(workers):
        assert worker["measured"]["costs"] == [LENGTHS] * 3
        share = len(range(rank, 50, 4))
        assert worker["measured"]["read"] == (share, share), "again where one did not have them"


def test_workers_with_different_columns_are_refused(workers):
    for worker in workers:
        numbers, with_nan, function = worker["different"]
        assert "workers have different complexities" in numbers
        assert "workers have different complexities" in with_nan
        assert "data sets have [50, 50, 47, 50] examples: give all of them the same" in function


def test_workers_deal_every_example_and_share_one_cache(workers):
    for number in range(2):
        of_workers = [worker["epoch"]["indices"][number] for worker in workers]
        assert [len(indices) for indices in of_workers] == [13] * 4
        taken = [index for indices in of_workers for index in indices]
        assert set(taken) == set(range(50)) and len(taken) == 52
        for worker, indices in zip(workers, of_workers, strict=True):
            assert worker["epoch"]["lengths"][number] == [LENGTHS[i] for i in indices]
    for worker in workers:
        assert worker["epoch"]["measured"] in (12, 13)
    computed = sum(worker["epoch"]["read"] - worker["epoch"]["measured"] for worker in workers)
    assert 50 <= computed <= 52, "once by all together; two come twice"
