import pytest

from netsim.datagrams import _rate_mbit, measuring_seconds


def test_the_rate_is_that_of_the_burst_whenever_it_came():
    idle = [(t / 1000, 0) for t in range(500)]
    burst = [(0.5 + t / 1000, 12_500 * t) for t in range(401)]
    after = [(1 + t / 1000, 12_500 * 400 + 5) for t in range(500)]
    assert _rate_mbit([*idle, *burst, *after]) == pytest.approx(100, rel=0.01)
    assert _rate_mbit(idle) == 0


def test_slow_and_long_links_are_measured_for_longer():
    assert measuring_seconds(100, 5) == 0.4
    assert measuring_seconds(10, 5) == 1
    assert measuring_seconds(100, 100) == 0.8
