"""Streams of a ring that go on their own, against rings whose windows and losses are drawn."""

import math
from dataclasses import replace

import numpy as np
import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.timeline.cost_model import CostModel
from netsim.timeline.tcp import throughput
from tests.netsim.operations import of_all
from tests.netsim.timeline.test_cost_model import IDEAL, cost_of, seconds_of

RTT_S, SEGMENT = 0.01, 1448
LOSSY = NetworkCondition(rate_mbit=10_000, delay_ms=5, loss_pct=1, congestion_control="reno")


def drawn_s(
    num_workers: int, num_hops: int, num_packets: float, loss: float, num_rings: int
) -> np.ndarray:
    """When each of some rings is through. Each of its connections has a window of its own, which
    grows by 0.53 segments a round trip or shrinks to 0.7 where one is lost. A worker begins a hop
    when it has sent its last piece and received the one before. Half a window of a piece costs no
    round trip of its own. A piece is late by one round trip if any of its last window is lost, by
    two if the last packet is, by 0.2 s and one if its probe is, too.
    """
    chance = np.random.default_rng(0)
    shape = (num_rings, num_workers)
    mean = math.sqrt(1.5 / loss)
    window = np.full(shape, mean)
    for _ in range(300):
        lost = chance.random(shape) > (1 - loss) ** window
        window = np.where(lost, 0.7 * window, window + 0.53)
    at_s = np.zeros(shape)
    for _ in range(num_hops):
        begins_s = np.maximum(at_s, np.roll(at_s, 1, axis=1))
        left, rounds = np.full(shape, num_packets - mean / 2), np.zeros(shape)
        while (left > 0).any():
            sends = left > 0
            rounds += np.where(sends, np.clip(left / window, 0, 1), 0)
            lost = chance.random(shape) > (1 - loss) ** np.minimum(window, np.maximum(left, 0))
            left -= window * sends
            window = np.where(sends, np.where(lost, 0.7 * window, window + 0.53), window)
        last, probe = chance.random(shape) < loss, chance.random(shape) < loss
        any_lost = chance.random(shape) > (1 - loss) ** min(num_packets, mean)
        waits_s = np.where(last, np.where(probe, 0.2 + RTT_S, 2 * RTT_S), any_lost * RTT_S)
        at_s = begins_s + rounds * RTT_S + waits_s
    return at_s.max(1)


@pytest.mark.parametrize("num_workers", [4, 8])
@pytest.mark.parametrize("num_packets", [30, 100, 400])
def test_the_latest_of_several_rings_is_through_as_late_as_drawn_ones(num_workers, num_packets):
    """Of each stream the pieces have so many packets, whatever the number of streams."""
    num_hops = 2 * (num_workers - 1)
    times_s = drawn_s(num_workers, num_hops, num_packets, 0.01, 1920)
    for k in (1, 4, 16):
        latest_s = times_s.reshape(-1, k).max(1).mean()
        operation = of_all("all_reduce_mean", num_packets * SEGMENT * num_workers * k, num_workers)
        striped = replace(IDEAL, streams=k, smallest_part_bytes=1)
        seconds = seconds_of(operation, LOSSY, num_workers, striped)
        assert seconds - num_hops * 0.005 == pytest.approx(latest_s, rel=0.13)


@pytest.mark.parametrize("workers", [None, {0: {"loss_pct": 2}}])
def test_streams_are_later_as_so_many_normal_draws_are(workers):
    """On the worst of the paths; a single stream's hops also wait for their delays."""
    condition = replace(LOSSY, loss_pct=0 if workers else 1, workers=workers)
    seconds = {
        k: seconds_of(
            of_all("all_reduce_mean", 100 * SEGMENT * 4 * k, 4),
            condition,
            4,
            replace(IDEAL, streams=k, smallest_part_bytes=1),
        )
        for k in (2, 4, 8)
    }
    draws = {k: throughput.largest_normal(k) for k in seconds}
    assert seconds[8] > seconds[2] + 2 * RTT_S
    found = (seconds[4] - seconds[2]) / (seconds[8] - seconds[2])
    expected = (draws[4] - draws[2]) / (draws[8] - draws[2])
    assert found == pytest.approx(expected, rel=0.02)


def test_short_pieces_deviate_by_their_waits_for_repairs_alone():
    """Of one packet each, six hops: variances add up, and the mean is taken off the squares."""
    rtt_s, loss, num_hops = 0.01, 0.1, 6
    lossy = replace(LOSSY, loss_pct=100 * loss)
    path_loss = float(CostModel(lossy, 4, IDEAL).at(0)[0].worst_path(np.arange(4)).loss)
    seconds = {
        k: seconds_of(
            of_all("all_reduce_mean", SEGMENT * 4 * k, 4),
            lossy,
            4,
            replace(IDEAL, streams=k, smallest_part_bytes=1),
        )
        for k in (2, 8)
    }
    mean_s, squared = (
        float(throughput.recovery_wait_s(SEGMENT, 1e9, rtt_s, path_loss, 4, power=power))
        for power in (1, 2)
    )
    deviation_s = math.sqrt(num_hops * (squared - mean_s**2))
    draws = throughput.largest_normal(8) - throughput.largest_normal(2)
    assert seconds[8] - seconds[2] == pytest.approx(draws * deviation_s, rel=1e-3)


@pytest.mark.parametrize("loss_pct", [1e-4, 1e-3, 1e-2, 0.1, 1])
@pytest.mark.parametrize("k", [2, 8, 64])
def test_the_latest_of_k_streams_waits_no_longer_than_all_of_them_together(loss_pct, k):
    """The largest of numbers that are not negative is no more than their sum; where losses are so
    rare that seldom two of the streams wait, it is about as much. Pieces are of one packet.
    """

    def wait_s(streams: int) -> float:
        striped = replace(IDEAL, streams=streams, smallest_part_bytes=1)
        operation = of_all("all_reduce_mean", SEGMENT * 8 * streams, 8)
        clean_s, lossy_s = (
            seconds_of(operation, replace(LOSSY, loss_pct=pct), 8, striped) for pct in (0, loss_pct)
        )
        return lossy_s - clean_s

    assert wait_s(1) < wait_s(k) <= k * wait_s(1) * (1 + 1e-3)
    if loss_pct * k < 0.01:
        assert wait_s(k) == pytest.approx(k * wait_s(1), rel=0.01)


def test_streams_do_not_wait_for_each_other_at_every_hop():
    """Of many streams one is late at each hop, but seldom the same: of 16 streams with 30 hops the
    latest is far from 30 times the latest of all.
    """
    operation = of_all("all_reduce_mean", 100 * SEGMENT * 16 * 16, 16)
    striped = replace(IDEAL, streams=16, smallest_part_bytes=1)
    alone_s = seconds_of(of_all("all_reduce_mean", 100 * SEGMENT * 16, 16), LOSSY, 16)
    striped_s = seconds_of(operation, LOSSY, 16, striped)
    assert alone_s < striped_s < 1.2 * alone_s
    in_step_s = drawn_s(16 * 16, 1, 100, 0.01, 50).mean() * 30
    assert in_step_s > 1.4 * alone_s


@pytest.mark.parametrize("name", ["all_reduce_mean", "all_gather"])
def test_without_loss_none_is_later(name):
    clean = replace(LOSSY, loss_pct=0, rate_mbit=100)
    few_s, many_s = (
        seconds_of(of_all(name, 4_000_000, 4), clean, 4, replace(IDEAL, streams=k)) for k in (4, 16)
    )
    assert few_s == pytest.approx(many_s, rel=1e-12)


def test_streams_share_the_link_s_time_and_the_latest_still_has_some_left():
    """By hand: 8 streams of 100 packets whose link is slower than their windows."""
    slow = replace(LOSSY, rate_mbit=20)
    striped = replace(IDEAL, streams=8, smallest_part_bytes=1)
    operation = of_all("all_reduce_mean", 100 * SEGMENT * 4 * 8, 4)
    cost = cost_of(operation, slow, 4, striped)
    late_s = seconds_of(operation, LOSSY, 4, striped) - 6 * _mean_rounds(100) * RTT_S
    busy_s = float(cost.busy_s.max()) / 0.99
    assert cost.seconds == pytest.approx(busy_s + late_s, rel=0.03)


def _mean_rounds(num_packets: int) -> float:
    return num_packets / math.sqrt(150) - 0.5
