import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsim.timeline.tcp import throughput as tcp
from tests.netsim.event_oracle import windowed_seconds

RATE = 12.5e6
RTT_S = 0.02


def test_reno_follows_the_inverse_square_root_of_the_loss():
    rate = tcp.loss_limited_rate("reno", RATE, 0.1, 0.01)
    assert rate == pytest.approx(1448 / 0.1 * math.sqrt(1.5) * 10)


def test_cubic_is_reno_until_its_own_response_is_larger():
    def windows(algorithm: str, loss: float) -> float:
        return float(tcp.loss_limited_rate(algorithm, math.inf, 0.1, loss)) * 0.1 / 1448

    for loss in (1e-2, 1e-3):
        assert windows("cubic", loss) == windows("reno", loss)
    for loss in (1e-4, 1e-5):
        assert windows("cubic", loss) == pytest.approx(1.054 * (0.1 / loss) ** 0.75, rel=1e-3)
        assert windows("cubic", loss) > windows("reno", loss)


def test_bbr_loses_what_is_lost():
    assert tcp.loss_limited_rate("bbr", RATE, 0.1, 0.01) == pytest.approx(0.99 * RATE)


@pytest.mark.parametrize("algorithm", ["reno", "cubic", "bbr", None])
def test_without_loss_all_reach_the_rate_and_with_nothing_else_none(algorithm):
    assert tcp.loss_limited_rate(algorithm, RATE, 0.1, 0) == RATE
    assert tcp.loss_limited_rate(algorithm, RATE, 0.1, 1) == 0
    assert tcp.loss_limited_rate(algorithm, math.inf, 0.1, 1) == 0


@given(
    low=st.floats(1e-6, 0.5),
    high=st.floats(1e-6, 0.5),
    algorithm=st.sampled_from(["reno", "cubic"]),
)
def test_more_loss_is_never_faster(low, high, algorithm):
    rates = tcp.loss_limited_rate(algorithm, RATE, RTT_S, np.sort([low, high]))
    assert rates[1] <= rates[0] <= RATE


def test_flows_add_up_to_no_more_than_the_link():
    one, four, many = (tcp.loss_limited_rate("reno", RATE, RTT_S, 0.01, n) for n in (1, 4, 1000))
    assert four == pytest.approx(4 * one)
    assert many == pytest.approx(0.99 * RATE)


@pytest.mark.parametrize(
    ("num_segments", "num_messages", "num_notes"), [(1, 1, 0), (19, 12, 12), (40, 4, 0), (0, 0, 3)]
)
def test_the_wait_for_lost_packets_is_the_mean_of_many_draws(num_segments, num_messages, num_notes):
    loss, num_draws = 0.03, 100_000
    chance = np.random.default_rng(0)
    lost = chance.random((num_draws, num_messages, max(num_segments, 1))) < loss
    probe_lost = chance.random((num_draws, num_messages)) < loss
    last = np.where(probe_lost, RTT_S + 0.2, 2 * RTT_S)
    of_messages_s = np.where(lost[:, :, -1], last, np.where(lost.any(2), RTT_S, 0))
    of_notes_s = np.where(chance.random((num_draws, num_notes)) < loss, RTT_S + 0.2, 0)
    latest_s = np.concatenate([of_messages_s, of_notes_s], axis=1).max(1)
    expected_s = tcp.recovery_wait_s(
        1448 * num_segments, math.inf, RTT_S, loss, num_messages, num_notes
    )
    error_s = latest_s.std() / math.sqrt(num_draws)
    assert expected_s == pytest.approx(latest_s.mean(), abs=4 * error_s)


def test_without_loss_nothing_waits_and_only_the_last_window_of_a_message_does():
    assert tcp.recovery_wait_s(1e6, 1e5, RTT_S, 0, 12, 12) == 0
    long, short = (tcp.recovery_wait_s(size, 14_480, RTT_S, 0.01) for size in (1e7, 14_480))
    assert long == short


@pytest.mark.parametrize(("rtt_s", "last_s"), [(0.05, 0.25), (0.15, 0.35), (0.5, 1.0)])
def test_a_lost_probe_is_waited_for_until_the_timeout_but_two_round_trips_at_least(rtt_s, last_s):
    """Of a message of one packet: with p = 0.1 it is lost, and its probe, too, with p^2."""
    expected_s = 0.1 * 2 * rtt_s + 0.01 * (last_s - 2 * rtt_s)
    assert tcp.recovery_wait_s(1448, math.inf, rtt_s, 0.1) == pytest.approx(expected_s)


def seconds_of_cubic_flows(num_segments: int, loss: float, num_flows: int) -> np.ndarray:
    """Round by round: a window grows by 0.53 segments, or shrinks to 0.7 where one is lost."""
    chance = np.random.default_rng(0)
    window = np.full(num_flows, math.sqrt(1.5 / loss))
    left, rounds = np.full(num_flows, float(num_segments)), np.zeros(num_flows)
    for step in range(10_000):
        warm = step >= 200  # as from any moment of a flow
        rounds += np.where(warm, np.clip(left / window, 0, 1), 0)
        left -= window * warm
        is_lost = chance.random(num_flows) > (1 - loss) ** window
        window = np.where(is_lost, 0.7 * window, window + 0.53)
        if (left <= 0).all():
            return rounds
    raise AssertionError


@pytest.mark.parametrize("num_segments", [76, 1_000, 10_000])
@pytest.mark.parametrize("num_messages", [2, 4, 12])
def test_the_slowest_of_several_flows_is_as_much_slower_as_simulated_ones(
    num_segments, num_messages
):
    times = seconds_of_cubic_flows(num_segments, 0.01, 600 * num_messages)
    slowest = times.reshape(-1, num_messages).max(1).mean() / times.mean()
    expected = tcp.slowest(1448 * num_segments, 0.01, num_messages)
    assert expected == pytest.approx(slowest, rel=0.12)
    assert tcp.slowest(1448 * num_segments, 0.01, 1) == 1


def test_a_message_takes_its_link_or_its_windows_whichever_is_longer():
    window = float(tcp.lossy_window_bytes("cubic", RTT_S, 0.01))
    assert tcp.message_s("cubic", 1e6, RATE, RTT_S, 0) == pytest.approx(1e6 / RATE)
    assert tcp.message_s("cubic", 1e6, RATE, RTT_S, 0, num_flows=3) == pytest.approx(3e6 / RATE)
    fits = tcp.message_s("cubic", window / 2, RATE, RTT_S, 0.01)
    assert fits == pytest.approx(window / 2 / (0.99 * RATE))
    ten = tcp.message_s("cubic", 10.5 * window, math.inf, RTT_S, 0.01)
    assert ten == pytest.approx(10 * RTT_S)
    assert tcp.message_s("cubic", 1e6, RATE, RTT_S, 1) == math.inf
    assert tcp.message_s("cubic", 0, RATE, RTT_S, 1) == 0


@pytest.mark.parametrize("num_packets", [1, 9, 10, 11, 20, 57])
@pytest.mark.parametrize("rtt_s", [0.0, 0.003, 0.05])
@pytest.mark.parametrize("num_flows", [1, 3])
def test_a_message_leaves_window_by_window_as_packet_by_packet(num_packets, rtt_s, num_flows):
    """Ten packets of a millisecond are a window; flows that share a link take turns."""
    packet_s = num_flows * 1000 / 1e6
    expected_s = windowed_seconds(num_packets, packet_s, max(rtt_s, 10 * packet_s), 10)
    seconds = tcp.message_s(
        "cubic", 1000 * num_packets, 1e6, rtt_s, 0, num_flows, max_window_bytes=10_000
    )
    assert seconds == pytest.approx(expected_s)


def test_a_connection_carries_no_more_than_a_window_in_a_round_trip():
    """3 MB in 100 ms are 30 MB/s; a gigabit link carries four of these."""
    rates = [tcp.loss_limited_rate("cubic", 125e6, 0.1, 0, flows, 3e6) for flows in (1, 3, 5)]
    assert rates == pytest.approx([30e6, 90e6, 125e6])
    lossy = tcp.loss_limited_rate("reno", 125e6, 0.1, 0.01, 1, 3e6)
    assert lossy == pytest.approx(1448 / 0.1 * math.sqrt(150))  # the smaller of two windows


def test_a_window_is_what_buffers_leave():
    assert tcp.socket_window_bytes(3e6, 6e6) == pytest.approx(2e6)
    assert tcp.socket_window_bytes(6e6, 3e6) == pytest.approx(1.5e6)
    measured = 225e6 / 8 * 0.1  # by Linux's defaults, at 1 Gbit/s and 100 ms
    assert pytest.approx(measured, rel=0.01) == tcp.LINUX_WINDOW_BYTES


def test_flows_share_a_link_for_the_first_half_of_their_windows():
    """Most of the time goes for windows of a few packets then, one each round trip."""
    head, rounds_s = tcp.lossy_rounds("cubic", 1e6, RTT_S, 0.05)
    arriving = 0.95 * RATE
    three = tcp.message_s("cubic", 1e6, RATE, RTT_S, 0.05, num_flows=3)
    assert rounds_s > 3 * 1e6 / arriving
    assert three == pytest.approx(3 * head / arriving + rounds_s)
    assert tcp.message_s("cubic", 1, RATE, RTT_S, 0) == pytest.approx(1 / RATE)


@pytest.mark.parametrize(("num_draws", "mean"), [(1, 0), (2, 0.5642), (3, 0.8463), (10, 1.5388)])
def test_the_largest_of_several_normal_draws(num_draws, mean):
    """Exact means: Teichroew 1956, Tables of Expected Values of Order Statistics."""
    assert tcp.largest_normal(num_draws) == pytest.approx(mean, abs=0.03)
