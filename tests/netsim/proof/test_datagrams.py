import pytest

from netsim.conditions.link import LinkCondition
from netsim.proof.arrivals import ByteSample, steady_rate_mbit
from netsim.proof.datagrams import measuring_seconds, num_turns, steady_part


def test_the_rate_is_that_of_the_burst_whenever_it_came():
    idle = [ByteSample(t / 1000, 0) for t in range(500)]
    burst = [ByteSample(0.5 + t / 1000, 12_500 * t) for t in range(401)]
    after = [ByteSample(1 + t / 1000, 12_500 * 400 + 5) for t in range(500)]
    samples = steady_part([*idle, *burst, *after])
    assert steady_rate_mbit(samples, 0) == pytest.approx(100, rel=0.01)


def test_slow_links_are_measured_for_longer_and_all_at_once():
    rings = {rate: [LinkCondition(rate_mbit=rate)] * 6 for rate in (1, 10, 30, 100)}
    assert [measuring_seconds(ring) for ring in rings.values()] == [2.2, 0.5, 0.3, 0.3]
    assert [num_turns(ring) for ring in rings.values()] == [1, 1, 2, 4]
    assert num_turns(rings[100][:2]) == 2
