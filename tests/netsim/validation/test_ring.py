import pytest

from netsim.conditions.link import LinkCondition
from netsim.validation.ring import seconds_in_theory


def test_the_theory_of_a_ring_with_headers_and_delays():
    path = LinkCondition(rate_mbit=100, delay_ms=5)
    assert seconds_in_theory(path, 4, 10_000_000) == pytest.approx(1.285, abs=0.001)
