"""Primitives between node leaders, against a few lines of plain torch."""

from types import SimpleNamespace

import pytest
import torch

from bagua_algos import AllReduce, Decentralized, LocalSGD, LowPrecisionDecentralized
from bagua_algos.communication.hierarchy import OneNode, levels
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
from bagua_algos.communication.topology import Complete, Exponential, Ring, ShiftOne
from bagua_algos.compressors import QSGD, SignScale
from bagua_algos.compressors.compressor import Draw
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.cases import (
    NODES,
    make_model,
    make_optimizer,
    on_worker_axis,
    take_step,
)
from tests.bagua_algos.recorder import Recorder

NUMEL, PADDED = 50, 64
UNEQUAL = [
    ((0, 1, 2), (3,)),
    ((0, 4), (1, 2, 3)),
    ((5, 6, 7), (0, 1, 2), (3, 4)),
    NODES[8],
]
ONE_EACH = ((0,), (1,), (2,), (3,))
every_grouping = pytest.mark.parametrize("nodes", UNEQUAL, ids=str)


def stacked(nodes, recorder=None):
    return StackedCommunicator(sum(map(len, nodes)), recorder, nodes=nodes)


def values(nodes, dtype=torch.float64):
    torch.manual_seed(0)
    return torch.randn(sum(map(len, nodes)), PADDED, dtype=dtype)


def of_nodes(x_wn, nodes):
    """The means of the nodes, in order of their leaders, and the nodes' sizes."""
    ordered = sorted(nodes)
    means = torch.stack([x_wn[list(node)].mean(0) for node in ordered])
    return means, torch.tensor([len(node) for node in ordered], dtype=x_wn.dtype)


def spread_out(x_kn, nodes):
    """`x[k, n]` of each node, for all its workers."""
    y_wn = torch.empty(sum(map(len, nodes)), x_kn.shape[1], dtype=x_kn.dtype)
    for x_n, node in zip(x_kn, sorted(nodes), strict=True):
        y_wn[list(node)] = x_n
    return y_wn


@every_grouping
def test_the_mean_is_that_of_workers_and_not_of_nodes(nodes):
    x_wn = values(nodes)
    expected = x_wn.mean(0).expand_as(x_wn).clone()
    all_reduce_mean_(x_wn, stacked(nodes), hierarchical=True)
    torch.testing.assert_close(x_wn, expected)
    assert torch.equal(x_wn, x_wn[:1].expand_as(x_wn))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_workers_that_agree_keep_their_mean_in_16_bits(dtype):
    """2/3 and 4/3, each rounded to bfloat16, would make all of it 0.2 % larger."""
    torch.manual_seed(0)
    x_wn = (1 + torch.rand(4000)).to(dtype).expand(3, -1).clone()
    before = x_wn.double().mean()
    all_reduce_mean_(x_wn, stacked(((0,), (1, 2))), hierarchical=True)
    assert abs(x_wn.double().mean() / before - 1) < 2e-4


@every_grouping
def test_a_compressed_mean_is_right_up_to_its_codes(nodes):
    x_wn = values(nodes, torch.float32)
    exact, (means, sizes) = x_wn.mean(0), of_nodes(x_wn, nodes)
    scaled = means * (sizes * len(nodes) / sizes.sum()).unsqueeze(1)
    level = (scaled.max() - scaled.min()).item() / 255
    compressed_all_reduce_mean_(x_wn, PADDED, stacked(nodes), MinMaxUInt8(), hierarchical=True)
    assert 0 < (x_wn - exact).abs().max() <= level
    assert torch.equal(x_wn, x_wn[:1].expand_as(x_wn))


@every_grouping
def test_error_feedback_between_leaders_makes_the_sum_over_time_exact(nodes):
    communicator, compressor, num_steps = stacked(nodes), SignScale(), 400
    residuals = Residuals.zeros_like(values(nodes).float(), communicator, hierarchical=True)
    assert residuals.worker.shape[:2] == (len(nodes), len(nodes))
    total = torch.zeros(PADDED)
    for _ in range(num_steps):
        x_wn = values(nodes, torch.float32)
        compressed_all_reduce_mean_(
            x_wn, PADDED, communicator, compressor, residuals, hierarchical=True
        )
        total += x_wn[0]
    error = (total / num_steps - values(nodes, torch.float32).mean(0)).abs().max()
    assert error < 0.1
    compressed_all_reduce_mean_(x_wn, PADDED, communicator, compressor, hierarchical=True)
    assert (x_wn[0] - values(nodes, torch.float32).mean(0)).abs().max() > 2 * error


@pytest.mark.parametrize("has_feedback", [False, True])
def test_leaders_draw_as_the_workers_that_they_are(has_feedback):
    """Or a worker would draw otherwise where it is held alone; and anew for the second codes."""
    drawn = []

    class Spy(QSGD):
        def compress(self, x, draw=None):
            drawn.append((draw.ranks, draw.stage))
            return super().compress(x, draw)

    nodes = ((0, 1, 2), (3,))
    communicator, draw = stacked(nodes), Draw(ranks=(0, 1, 2, 3), step=5)
    x_wn = values(nodes, torch.float32)
    residuals = Residuals.zeros_like(x_wn, communicator, hierarchical=True)
    compressed_all_reduce_mean_(
        *(x_wn, PADDED, communicator, Spy(), residuals if has_feedback else None, draw),
        hierarchical=True,
    )
    assert drawn == [((0, 3), 0), ((0, 3), 1)]


@every_grouping
@pytest.mark.parametrize("topology", [Ring(), Exponential(), Complete()])
def test_mixing_between_nodes_keeps_the_workers_mean_and_what_all_agree_on(nodes, topology):
    communicator, x_wn = stacked(nodes), values(nodes)
    num_nodes = levels(communicator, True).num_parties
    assert num_nodes == len(nodes)
    means, sizes = of_nodes(x_wn, nodes)
    for step in range(3):
        mixing = topology.mixing(step, num_nodes)
        mixed_wn = mix(x_wn, mixing, communicator, hierarchical=True)
        torch.testing.assert_close(mixed_wn.mean(0), x_wn.mean(0))
        if mixing.averages_all:
            expected = x_wn.mean(0).expand(num_nodes, -1)
        else:
            pace = (sizes.min() / sizes).unsqueeze(1)
            expected = means + pace * (torch.from_numpy(mixing.matrix()) @ means - means)
        torch.testing.assert_close(mixed_wn, spread_out(expected, nodes))
        agreed = torch.full_like(x_wn, 3.0)
        torch.testing.assert_close(mix(agreed, mixing, communicator, hierarchical=True), agreed)


@pytest.mark.parametrize("nodes", [*UNEQUAL, ONE_EACH], ids=str)
def test_differences_between_nodes_are_exchanged_by_codes(nodes):
    """Two steps of D_LP_S on nodes' means; then replicas are what they replicate."""
    communicator = stacked(nodes)
    mixing = Ring().mixing(0, len(nodes))
    A = torch.from_numpy(mixing.matrix()).float()
    start = torch.zeros(communicator.world_size, NUMEL)
    replicas = Replicas.of(start, mixing, communicator, hierarchical=True)
    assert replicas.own.shape == (len(nodes), NUMEL)
    w, compressor = torch.zeros(len(nodes), NUMEL), MinMaxUInt8()
    x_wn = values(nodes, torch.float32)[:, :NUMEL].clone()
    for _ in range(2):
        means, sizes = of_nodes(x_wn, nodes)
        z = means - w + (sizes.min() / sizes).unsqueeze(1) * (A @ w - w)
        w = w + compressor.decompress(compressor.compress(z), NUMEL)
        compressed_mix_(x_wn, replicas, mixing, communicator, compressor, hierarchical=True)
        torch.testing.assert_close(x_wn, spread_out(w, nodes), rtol=0, atol=1e-5)
        x_wn += values(nodes, torch.float32)[:, :NUMEL] / 10
    assert torch.equal(replicas.neighbours[0], replicas.own.roll(1, 0))


def test_one_node_averages_fully_in_one_operation():
    """Its leader has no other to send codes to, or to gossip with."""
    recorder, nodes = Recorder(), ((0, 1, 2, 3),)
    communicator, start = stacked(nodes, recorder), values(nodes, torch.float32)
    compressed, exchanged, compressor = start.clone(), start[:, :NUMEL].clone(), MinMaxUInt8()
    alone = Ring().mixing(0, 1)
    replicas = Replicas.of(exchanged, alone, communicator, hierarchical=True)
    residuals = Residuals.zeros_like(start, communicator, hierarchical=True)
    assert torch.equal(replicas.own, start[:1, :NUMEL]), "of worker 0"
    assert residuals.worker.shape == (1, 1, PADDED)
    compressed_all_reduce_mean_(
        compressed, PADDED, communicator, compressor, residuals, hierarchical=True
    )
    mixed = mix(start, alone, communicator, hierarchical=True)
    compressed_mix_(exchanged, replicas, alone, communicator, compressor, hierarchical=True)
    for found in (compressed, mixed, exchanged):
        expected = start[:, : found.shape[1]].mean(0)
        torch.testing.assert_close(found, expected.expand_as(found))
    assert [(o.name, o.ranks) for o in recorder.operations] == [("all_reduce_mean", nodes[0])] * 3


def test_of_workers_that_are_held_alone_the_first_of_their_one_node_takes_part():
    leader, x_w = LoopbackCommunicator(2, nodes=((0, 1),)), torch.ones(1, 3)
    other = OneNode(SimpleNamespace(ranks=(1,)))  # pyright: ignore[reportArgumentType]
    assert torch.equal(levels(leader, True).of_parties(x_w), x_w)
    assert other.of_parties(x_w).shape == (0, 3)


@pytest.mark.parametrize(
    ("hierarchical", "flat"),
    [
        (Decentralized(hierarchical=True), Decentralized(topology=Complete())),
        (
            Decentralized(topology=ShiftOne(), hierarchical=True),
            Decentralized(topology=Complete()),
        ),
        (LowPrecisionDecentralized(hierarchical=True), LocalSGD(interval=1)),
    ],
    ids=str,
)
def test_decentralized_training_on_one_node_averages_fully(hierarchical, flat):
    def trained(algorithm):
        communicator = stacked(((0, 1, 2, 3),))
        model = on_worker_axis(make_model(), communicator)
        optimizer = make_optimizer(model)
        Engine(model, optimizer, algorithm, communicator, bucket_bytes=4096)
        for step in range(5):
            take_step(model, optimizer, step, communicator.ranks)
        return [p.detach() for p in model.parameters()]

    for found, expected in zip(trained(hierarchical), trained(flat), strict=True):
        assert torch.equal(found, expected)


def test_one_worker_each_is_flat_bit_for_bit():
    nodes = ONE_EACH

    def run(hierarchical, recorder):
        communicator = stacked(nodes, recorder)
        x_wn = values(nodes, torch.float32)
        compressed_all_reduce_mean_(
            x_wn, PADDED, communicator, MinMaxUInt8(), hierarchical=hierarchical
        )
        mixed_wn = mix(x_wn, Ring().mixing(0, 4), communicator, hierarchical)
        all_reduce_mean_(x_wn, communicator, hierarchical)
        return x_wn, mixed_wn, recorder.operations

    for ours, flat in zip(run(True, Recorder()), run(False, Recorder()), strict=True):
        assert ours == flat if isinstance(ours, list) else torch.equal(ours, flat)


def bytes_between_nodes(recorder, nodes):
    """What crosses from one node to another: a ring's neighbours, or everyone with everyone."""
    node_of = {rank: k for k, node in enumerate(nodes) for rank in node}
    total = 0.0
    for operation in recorder.operations:
        ranks = operation.ranks
        if operation.name == "all_reduce_mean":
            neighbours = zip(ranks, (*ranks[1:], ranks[0]), strict=True)
            crossing = sum(node_of[a] != node_of[b] for a, b in neighbours)
            total += crossing * operation.bytes_sent
        else:
            pairs = [(a, b) for a in ranks for b in ranks if a != b]
            share = operation.bytes_sent / max(1, len(ranks) - 1)
            total += share * sum(node_of[a] != node_of[b] for a, b in pairs)
    return total


@pytest.mark.parametrize("nodes", [((0, 1, 2, 3), (4, 5, 6, 7)), NODES[8]], ids=str)
def test_operations_name_who_took_part_and_fewer_bytes_cross_nodes(nodes):
    sent = {}
    for hierarchical in (False, True):
        recorder = Recorder()
        communicator = stacked(nodes, recorder)
        x_wn = values(nodes, torch.float32)
        compressed_all_reduce_mean_(
            x_wn, PADDED, communicator, MinMaxUInt8(), hierarchical=hierarchical
        )
        sent[hierarchical] = bytes_between_nodes(recorder, nodes)
    shared = [node for node in sorted(nodes) if len(node) > 1]
    leaders = tuple(node[0] for node in sorted(nodes))
    assert [(o.name, o.ranks) for o in recorder.operations] == [
        *(("all_reduce_mean", node) for node in shared),
        ("all_to_all", leaders),
        ("all_gather", leaders),
        *(("broadcast", node) for node in shared),
    ]
    assert sent[True] < 0.5 * sent[False]


def test_peers_of_a_part_are_named_as_all_name_them():
    recorder, nodes = Recorder(), ((0, 3), (1, 4), (2,), (5,))
    mix(values(nodes), Exponential().mixing(0, 4), stacked(nodes, recorder), hierarchical=True)
    [exchange] = [o for o in recorder.operations if o.name == "exchange"]
    assert (exchange.ranks, exchange.peers) == ((0, 1, 2, 5), (1, 2, 5, 0))


def test_without_nodes_hierarchical_is_refused_before_training():
    communicator = StackedCommunicator(4)
    model = on_worker_axis(make_model(), communicator)
    with pytest.raises(ValueError, match="needs to know which workers share a node"):
        Engine(model, make_optimizer(model), AllReduce(hierarchical=True), communicator)


@pytest.mark.parametrize("nodes", [((0, 1), (2,)), ((0, 1), (1, 2, 3)), ((1, 0), (2, 3)), ((),)])
def test_nodes_that_do_not_share_all_workers_out_are_refused(nodes):
    with pytest.raises(ValueError, match=r"every worker of 0\.\.3 must be in exactly one"):
        StackedCommunicator(4, nodes=nodes)


def test_real_workers_find_out_which_of_them_share_a_host(real):
    assert real["hosts"]["nodes"].tolist() == [[0, 1, 2, 3]] * 4
