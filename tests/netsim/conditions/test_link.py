import math

import pytest

from netsim.conditions.link import LinkCondition, in_series


@pytest.mark.parametrize("name", ["rate_mbit", "delay_ms", "jitter_ms", "loss_pct", "queue_ms"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "fast", True])
def test_refuses_what_is_no_quantity(name, value):
    with pytest.raises(ValueError, match=rf"^{name} has to be .* not {value!r}\.$"):
        LinkCondition(**{name: value})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"rate_mbit": 0}, "rate_mbit=0 is under 1, where a single burst lasts"),
        ({"rate_mbit": 1e308}, r"rate_mbit=1e\+308 is over 1e\+12, which no link has"),
        ({"rate_mbit": 10**400}, r"rate_mbit=10+ is over 1e\+12, which no link has"),
        ({"delay_ms": 300_000}, "delay_ms=300000 is over 270000 .* 32 bits of 64 ns"),
        ({"jitter_ms": 2}, "jitter_ms=2 exceeds delay_ms=0"),
        ({"delay_ms": 1, "jitter_ms": 2}, "jitter_ms=2 exceeds delay_ms=1"),
        ({"loss_pct": 101}, "choose 0 to 100, not 101"),
    ],
)
def test_refuses_what_no_link_can_do(values, reason):
    with pytest.raises(ValueError, match=reason):
        LinkCondition(**values)


def test_links_in_series_are_as_slow_as_the_slowest_and_lose_what_any_of_them_loses():
    links = [
        LinkCondition(rate_mbit=100, delay_ms=5, jitter_ms=1, loss_pct=10),
        LinkCondition(delay_ms=2, loss_pct=50, queue_ms=30),
        LinkCondition(rate_mbit=10),
    ]
    path = in_series(links)
    assert (path.rate_mbit, path.delay_ms, path.jitter_ms, path.queue_ms) == (10, 7, 1, 30)
    assert path.loss_pct == pytest.approx(55)
