import pytest
import torch

from tests.bagua_algos.gloo import run_program_once
from tests.experiments.validation.streams.pieces_workers import SIZES, WAYS, sent


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    program = "tests.experiments.validation.streams.pieces_workers"
    return run_program_once(tmp_path_factory, program, 4)


@pytest.mark.parametrize("way", WAYS)
def test_all_pieces_arrive_in_their_places(workers, way):
    for rank, found in enumerate(workers):
        for num_elements, (of_left, of_all) in zip(SIZES, found[way], strict=True):
            assert torch.equal(of_left, sent((rank - 1) % 4, num_elements))
            share = num_elements // 4
            shares = [sent(j, num_elements)[:, share * rank : share * (rank + 1)] for j in range(4)]
            assert torch.equal(of_all, torch.stack(shares, 1))


def test_whoever_waits_for_a_worker_that_has_gone_hears_of_it(workers):
    told = [found["gone"] for found in workers[:3]]
    assert all("failed after" in sentence for sentence, _ in told)
    assert max(seconds for _, seconds in told) < 30  # of a limit of 60
