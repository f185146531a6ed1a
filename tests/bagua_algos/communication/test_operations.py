"""Sentences, bytes and rows of operations, and workers that one process holds."""

import pytest
import torch
from torch._C import _DistError

from bagua_algos.communication.communicator import (
    CommunicationError,
    Operation,
    named_workers,
    num_bytes_per_worker,
    reason_of,
    telling_failures,
)
from bagua_algos.communication.hierarchy import of_held
from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.communication.primitives import (
    Replicas,
    Residuals,
    all_reduce_mean_,
    compressed_all_reduce_mean_,
    compressed_mix_,
    mix,
)
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.communication.topology import RandomMatching, Ring
from bagua_algos.communication.workers import Workers
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from tests.bagua_algos.recorder import Recorder


def test_what_torch_says_of_lost_workers_and_what_is_told_already():
    told = CommunicationError("worker 1: gone")
    for said, sentence in ((_DistError("Broken"), "worker 2: Broken"), (told, "worker 1: gone")):
        with pytest.raises(CommunicationError, match=f"^{sentence}$"), telling_failures(2):
            raise said


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("[/a/pair.cc:5] Gone. This is typically caused by rain", "Gone"),
        ("Timed out\nand much more", "Timed out"),
        ("no [place] at all.", "no [place] at all"),
    ],
)
def test_a_reason_is_the_first_sentence(said, reason):
    assert reason_of(RuntimeError(said)) == reason


@pytest.mark.parametrize(
    ("name", "num_bytes", "sent"),
    [
        ("all_reduce_mean", 100, 150),  # a ring's 2 * 3 steps of a quarter
        ("all_to_all", 100, 75),  # a quarter stays
        ("reduce_scatter_mean", 100, 75),
        ("all_gather", 100, 300),
        ("broadcast", 100, 75),  # three copies, of four workers
        ("exchange", 100, 100),
    ],
)
def test_bytes_on_the_wire_of_one_of_four_workers(name, num_bytes, sent):
    operation = Operation(name=name, num_bytes=num_bytes, ranks=(0, 1, 2, 3))
    assert (operation.bytes_sent, operation.seconds) == (sent, 0), "nobody has measured it"


def test_workers_are_named():
    names = [named_workers(ranks) for ranks in ((), (3,), (1, 2))]
    assert names == ["nobody", "worker 3", "workers 1, 2"]


def test_bytes_of_a_worker_are_those_of_its_row():
    assert num_bytes_per_worker(torch.zeros(3, 5, 2, dtype=torch.float64)) == 80


@pytest.mark.parametrize("make", [StackedCommunicator, LoopbackCommunicator])
def test_workers_of_one_process_have_no_connections(make):
    workers: Workers = make(2)
    assert (workers.streams, workers.halving_doubling_bytes, workers.fixed_order) == (1, 0, False)
    assert workers.departures is None
    with pytest.raises(ValueError, match=f"{make.__name__} has no connections to choose"):
        workers.use_transport(streams=1, halving_doubling_bytes=0, fixed_order=False, pieces=False)
    workers.close()


@pytest.mark.parametrize("make", [StackedCommunicator, LoopbackCommunicator])
def test_each_operation_is_told(make):
    workers = make(3, recorder := Recorder())
    x_wN = torch.zeros(len(workers.ranks), 3, 2)
    workers.all_reduce_mean_(x_wN)
    workers.broadcast_(x_wN)
    for move in (workers.all_to_all, workers.all_gather, workers.reduce_scatter_mean):
        move(x_wN)
    workers.exchange(x_wN, (1, 2, 0))
    names = ("all_reduce_mean", "broadcast", "all_to_all", "all_gather", "reduce_scatter_mean")
    assert recorder.messages == [(name, 24) for name in (*names, "exchange")]
    assert [o.peers for o in recorder.operations] == [None] * 5 + [(1, 2, 0)]


@pytest.mark.parametrize("parts", [[[0, 2], [1]], [[0, 1], [2]]])
def test_a_part_changes_its_own_rows(parts):
    """Neighbours are a view of the rows, others a copy."""
    workers = StackedCommunicator(3, recorder := Recorder())
    x_w = torch.tensor([[1.0], [2.0], [4.0]])
    first, second = workers.split(parts)
    first.run_(x_w, lambda x_p, among: among.all_reduce_mean_(x_p))
    [others] = parts[1]
    expected = torch.full((3, 1), (7 - x_w[others].item()) / 2)
    expected[others] = x_w[others]
    assert torch.equal(x_w, expected)
    assert second.communicator.members == (others,)
    assert [operation.ranks for operation in recorder.operations] == [tuple(parts[0])]


@pytest.mark.parametrize(
    ("dtype", "mean"),
    [
        # bfloat16 has 8 bits: 256 + 1 is 256; fp16 has 11, and is divided first.
        (torch.bfloat16, 256 / 3),
        (torch.float16, 86.0),
        (torch.float32, 86.0),
    ],
)
def test_stacked_sums_of_16_bits_are_rounded_at_every_addition(dtype, mean):
    x_w = torch.tensor([[256.0], [1.0], [1.0]], dtype=dtype)
    StackedCommunicator(3).all_reduce_mean_(x_w)
    expected = torch.full((3, 1), mean, dtype=dtype)
    torch.testing.assert_close(x_w, expected, rtol=1e-3 if dtype == torch.float16 else 0, atol=0)


def test_an_echo_meets_in_every_operation_and_tells_how_long_that_took():
    seconds, met = iter([1.0, 1.5, 4.0, 4.25, 9.0, 9.0]), []
    own = LoopbackCommunicator(
        3,
        recorder := Recorder(),
        clock=lambda: next(seconds),
        meet=[lambda: met.append("first"), lambda: met.append("second")],
    )
    other = own.duplicate()
    own.all_reduce_mean_(torch.zeros(1, 2))
    other.broadcast_(torch.zeros(1, 2), source=1)
    assert [operation.seconds for operation in recorder.operations] == [0.5, 0.25]
    assert own.duplicate() is own and other.duplicate() is other, "there is no third to meet"
    [part] = own.split([[0, 1], [2]])
    part.communicator.all_reduce_mean_(torch.zeros(1, 2))
    assert met == ["first", "second", "first"]


def test_an_echo_is_worker_0():
    """Where workers have weights of their own, it has the first."""
    own = LoopbackCommunicator(3)
    assert own.ranks == (0,) and own.members == (0, 1, 2)
    assert of_held([5.0, 7.0, 9.0], own, torch.zeros(1, 2)).tolist() == [[5.0]]
    [part] = own.split([[0, 2], [1]])
    assert part.communicator.ranks == (0,) and part.communicator.members == (0, 2)


def test_primitives_are_flat_unless_they_are_told_otherwise():
    """Also where nodes are known."""
    workers = StackedCommunicator(4, recorder := Recorder(), nodes=((0, 1), (2, 3)))
    ring, code = Ring().mixing(0, 4), MinMaxUInt8()
    x_wn = torch.arange(64.0).repeat(4, 1)
    all_reduce_mean_(x_wn, workers)
    compressed_all_reduce_mean_(x_wn, 64, workers, code, Residuals.zeros_like(x_wn, workers))
    mix(x_wn, ring, workers)
    compressed_mix_(x_wn, Replicas.of(x_wn, ring, workers), ring, workers, code)
    assert {operation.ranks for operation in recorder.operations} == {(0, 1, 2, 3)}
    assert [operation.name for operation in recorder.operations] == [
        *("all_reduce_mean", "all_to_all", "all_gather", "exchange", "exchange", "exchange"),
        "exchange",
    ]
    assert {operation.seconds for operation in recorder.operations} == {0.0}


def test_a_broadcast_is_of_worker_0_if_of_no_other():
    x_w = torch.tensor([[3.0], [4.0], [5.0]])
    StackedCommunicator(3).broadcast_(x_w)
    assert x_w.flatten().tolist() == [3, 3, 3]


def test_random_pairs_of_the_first_seed():
    [exchange] = RandomMatching(seed=0).mixing(0, 4).exchanges
    assert sorted(exchange.peers) == [0, 1, 2, 3]
    assert RandomMatching().mixing(0, 8) == RandomMatching(seed=0).mixing(0, 8)


def test_a_part_of_nobody_is_refused():
    with pytest.raises(ValueError, match=r"every worker of 0\.\.1 must be in exactly one part"):
        StackedCommunicator(2).split([[0, 1], []])
