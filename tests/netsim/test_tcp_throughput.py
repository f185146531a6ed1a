import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netsim import tcp_throughput as tcp

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


def waited_round_by_round(num_bytes: float, window: float, rate: float, rtt_s: float) -> float:
    waited_s = 0.0
    while num_bytes > window and window < rate * rtt_s:
        waited_s += rtt_s - window / rate
        num_bytes -= window
        window *= 2
    return waited_s


@pytest.mark.parametrize("num_bytes", [1, 14_480, 14_481, 40_000, 100_000, 400_000, 10_000_000])
@pytest.mark.parametrize("window", [14_480, 50_000, 10_000_000])
def test_slow_start_waits_as_long_as_its_rounds(num_bytes, window):
    expected = waited_round_by_round(num_bytes, window, RATE, RTT_S)
    assert tcp.slow_start_wait_s(num_bytes, window, RATE, RTT_S) == pytest.approx(expected)


def test_an_unshaped_link_waits_a_round_trip_for_each_doubling():
    assert tcp.slow_start_wait_s(40_000, 14_480, math.inf, RTT_S) == pytest.approx(RTT_S)
    assert tcp.slow_start_wait_s(40_000, 14_480, math.inf, 0) == 0


def test_a_window_is_halved_for_every_timeout_of_a_pause():
    timeout_s = 0.2 + RTT_S
    windows = [tcp.idle_window_bytes(64e3, n * timeout_s * 1.01, RTT_S) for n in (0, 0.5, 1, 2, 9)]
    assert windows == [64e3, 64e3, 32e3, 16e3, tcp.INITIAL_WINDOW_BYTES]


def test_a_window_opens_to_twice_what_was_sent_and_no_further_than_the_link_holds():
    assert tcp.opened_window_bytes(40e3, 14_480, RATE, RTT_S) == 80e3
    assert tcp.opened_window_bytes(10e6, 14_480, RATE, RTT_S) == 1.5 * RATE * RTT_S
    assert tcp.opened_window_bytes(10, 14_480, RATE, 1e-6) == 14_480
