import pytest
import torch

from bagua_algos.communication.pieces import AHEAD
from tests.bagua_algos.communication.pieces_workers import (
    BORDER,
    SHORT_BYTES,
    SIZES,
    STREAMS,
    sent,
)
from tests.bagua_algos.gloo import run_program_once


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    program = "tests.bagua_algos.communication.pieces_workers"
    return run_program_once(tmp_path_factory, program, 4)


def assert_all_arrived(rank, num_elements, found):
    of_left, of_all = found
    assert torch.equal(of_left, sent((rank - 1) % 4, num_elements))
    share = num_elements // 4
    shares = [sent(j, num_elements)[:, share * rank : share * (rank + 1)] for j in range(4)]
    assert torch.equal(of_all, torch.stack(shares, 1))


def test_all_pieces_arrive_in_their_places(workers):
    for rank, found in enumerate(workers):
        for num_elements, moved in zip(SIZES, found["short"], strict=True):
            assert_all_arrived(rank, num_elements, moved)


def test_large_and_small_messages_arrive_also_by_connections_that_another_has_left(workers):
    for rank, found in enumerate(workers):
        usual = found["usual"]
        assert_all_arrived(rank, BORDER - 4, usual["below"])
        assert_all_arrived(rank, BORDER, usual["at"])
        assert usual["is used again"]
        for turn in ("beyond", "again", "by two", "by one"):
            assert_all_arrived(rank, 4 * BORDER, usual[turn])


def test_two_threads_a_stream_begin_with_the_first_pieces_and_end_with_the_connections(workers):
    for found in workers:
        usual = found["usual"]
        assert usual["threads below"] == 0
        assert usual["threads"] == 2 * STREAMS
        assert usual["threads after"] == 0


@pytest.mark.parametrize("pattern", ["directly", "halving and doubling"])
def test_sums_in_a_fixed_order_have_the_same_bits_in_pieces(workers, pattern):
    for found in workers:
        sums = found["sums"]
        in_pieces, in_parts = sums[f"{pattern}, in pieces"], sums[f"{pattern}, in equal parts"]
        assert torch.equal(in_pieces, in_parts)
        assert torch.equal(in_pieces, workers[0]["sums"][f"{pattern}, in pieces"])


def test_workers_of_a_part_have_pieces_too(workers):
    for rank, found in enumerate(workers):
        assert found["parts"]["pieces"]
        assert torch.equal(found["parts"]["of the other"], sent((rank + 2) % 4, BORDER))


def test_a_stream_that_is_held_up_leaves_its_pieces_to_the_others(workers):
    """As many as the receiver has room for may be on the way."""
    for rank, found in enumerate(workers):
        assert torch.equal(found["busy"]["arrived"], sent((rank - 1) % 4, 8_000))
        held_up, *others = found["busy"]["pieces sent"]
        assert held_up <= AHEAD + 1
        assert held_up + sum(others) == 8_000 * 4 // SHORT_BYTES


def test_a_silent_stream_is_named_and_nothing_is_tried_after_it(workers):
    first, second = workers[0]["silent"]
    assert first.startswith("worker 0: exchange with worker 1 failed after")
    assert "stream 2 of 3: " in first
    assert "not tried after: stream 2 of 3: " in second


def test_a_piece_that_is_lost_is_noticed(workers):
    assert "of 80 pieces 79 came from one worker" in workers[0]["lost"]
    assert [found["lost"] for found in workers[1:]] == ["", "", ""]


def test_whoever_waits_for_a_worker_that_has_gone_hears_of_it(workers):
    told = [found["gone"] for found in workers[:3]]
    assert all("failed after" in sentence for sentence, _ in told)
    assert max(seconds for _, seconds in told) < 30  # of a limit of 60
