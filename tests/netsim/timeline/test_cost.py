"""The terms that all patterns share, through an exchange of two workers, by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import wire_per_payload
from netsim.timeline.cost_model import CostModel
from netsim.timeline.tcp import throughput
from tests.netsim.operations import of_all
from tests.netsim.timeline.test_cost_model import IDEAL, cost_of

WIRE_PER_PAYLOAD = wire_per_payload()

NETWORK = NetworkCondition(rate_mbit=100, delay_ms=10)
RATE = 12.5e6 / WIRE_PER_PAYLOAD


def exchanged(num_bytes: int, condition: NetworkCondition = NETWORK, **options):
    return cost_of(
        of_all("exchange", num_bytes, 2, shift=1),
        condition,
        2,
        replace(IDEAL, **options.pop("transport", {})),
        **options,
    )


@pytest.mark.parametrize(
    ("num_bytes", "late"),
    [(1, 0), (1448, 0), (1449, 1 / 3), (2 * 1448 + 1, 2 / 4), (14_480, 9 / 11), (14_481, 10 / 12)],
)
def test_of_several_packets_the_one_with_the_largest_jitter_counts(num_bytes, late):
    """The largest of n even draws from -1 to 1 is (n - 1) / (n + 1) on average; 1,448 bytes fill a
    packet.
    """
    jittery = replace(NETWORK, jitter_ms=6)
    late_s = exchanged(num_bytes, jittery).seconds - exchanged(num_bytes).seconds
    assert late_s == pytest.approx([0.006 * late] * 2, abs=1e-12)


def test_the_largest_of_several_draws_is_as_large_on_average():
    draws = np.random.default_rng(0).uniform(-1, 1, size=(200_000, 5)).max(1)
    assert draws.mean() == pytest.approx(4 / 6, abs=0.005)


@pytest.mark.parametrize("streams", [1, 4])
def test_a_message_is_handed_over_but_for_what_sockets_hold(streams):
    transport = {"socket_bytes": 100_000, "streams": streams, "smallest_part_bytes": 1}
    cost = exchanged(1_000_000, transport=transport)
    expected_s = (1_000_000 - 100_000) / RATE
    assert cost.handover_s == pytest.approx([expected_s] * 2)
    assert exchanged(99_999, transport=transport).handover_s == pytest.approx([0, 0])


@pytest.mark.parametrize("streams", [1, 4])
def test_a_window_opens_on_each_stream_to_its_share_of_the_link(streams):
    """To one and a half round trips of it, or by what was in flight up to twice that."""
    transport = {"streams": streams, "smallest_part_bytes": 1}
    long = exchanged(100_000_000, transport=transport, window_bytes=14_480)
    [window] = long.windows
    assert window == pytest.approx((1.5 * RATE / streams * 0.02, 0.5 * RATE / streams * 0.02))
    short = exchanged(4_000 * streams, transport=transport, window_bytes=5_000)
    assert short.windows == ((8_000, math.inf),)


def test_one_window_stands_for_all_and_is_that_of_the_fastest_link():
    """Workers 1 and 2 have 100 Mbit/s between them, worker 0 has 10."""
    mixed = replace(NETWORK, workers={0: {"rate_mbit": 10}})
    [window] = cost_of(
        of_all("exchange", 100_000_000, 3, shift=1), mixed, 3, IDEAL, window_bytes=14_480
    ).windows
    assert window == pytest.approx((1.5 * RATE * 0.02, 0.5 * RATE * 0.02))


def test_word_of_readiness_takes_a_delay_where_there_is_a_rendezvous():
    with_word = exchanged(1000, transport={"rendezvous": True, "message_s": 0.001})
    assert with_word.notice_s == pytest.approx([0.011] * 2)
    assert exchanged(1000).notice_s == pytest.approx([0, 0])
    assert exchanged(1000).rtt_s == pytest.approx(0.02)
    assert exchanged(1000).drain_s == pytest.approx([0.01] * 2)


@pytest.mark.parametrize(("streams", "rendezvous"), [(1, False), (1, True), (2, True)])
def test_a_packet_of_each_stream_and_its_word_may_be_lost(streams, rendezvous):
    """Two messages, each of one packet a stream, and as many words. A packet is late by two round
    trips, or by 0.2 s and one, if its probe is lost, too; a word by 0.2 s and one.
    """
    transport = {"streams": streams, "smallest_part_bytes": 1, "rendezvous": rendezvous}
    lossy = replace(NETWORK, loss_pct=1)
    late_s = (
        exchanged(1000, lossy, transport=transport).seconds
        - exchanged(1000, transport=transport).seconds
        - 1000 / RATE * (1 / 0.99 - 1)
    )
    chance = np.random.default_rng(1)
    shape = (400_000, 2 * streams)
    lost, probe_lost = chance.random(shape) < 0.01, chance.random(shape) < 0.01
    word_lost = (chance.random(shape) < 0.01) & rendezvous
    waits_s = np.where(lost, np.where(probe_lost, 0.22, 0.04), 0)
    expected_s = np.maximum(waits_s, np.where(word_lost, 0.22, 0)).max(1).mean()
    assert late_s == pytest.approx([expected_s] * 2, rel=0.05)


def test_jumbo_frames_have_fewer_headers_fewer_packets_and_larger_windows():
    """By hand: 66 bytes of headers beside 8,948 of data; ten segments to begin with; under loss a
    window of so many segments (Mathis et al. 1997), of each message.
    """
    jumbo = replace(NETWORK, mtu=9000)
    bytes_s = 1_000_000 * (9014 / 8948) * 8e-8
    assert exchanged(1_000_000, jumbo).seconds == pytest.approx([bytes_s + 0.01] * 2)
    assert CostModel(jumbo, 2).wire_per_payload == 9014 / 8948
    assert CostModel(jumbo, 2).transport.initial_window_bytes == 89_480
    jittery = replace(jumbo, jitter_ms=6)
    for num_bytes, num_packets in ((8_948, 1), (8_949, 2)):
        late_s = exchanged(num_bytes, jittery).seconds - exchanged(num_bytes, jumbo).seconds
        expected_s = 0.006 * (num_packets - 1) / (num_packets + 1)
        assert late_s == pytest.approx([expected_s] * 2, abs=1e-12)
    lossy = NetworkCondition(delay_ms=10, loss_pct=1, congestion_control="reno", mtu=9000)
    window_bytes = 8_948 * math.sqrt(1.5 / 0.01)
    mss_bytes = IDEAL.over(lossy).mss_bytes
    rate = throughput.loss_limited_rate("reno", math.inf, 0.02, 0.01, segment=mss_bytes)
    assert rate == pytest.approx(window_bytes / 0.02)
    small = exchanged(10_000_000, replace(lossy, mtu=1500)).seconds
    assert np.max(exchanged(10_000_000, lossy).seconds) < 0.25 * np.min(small)


def test_a_queue_that_holds_a_senders_burst_does_not_slow_it():
    """70 kB come at once, and 80 fit. The bursts of two senders would not."""
    near_full = NetworkCondition(rate_mbit=100, delay_ms=50, queue_ms=6.4)
    cost = exchanged(10**7, near_full, transport={"socket_bytes": 0})
    assert cost.handover_s == pytest.approx(10**7 / RATE)
