import pytest

from netsim.conditions.link import LinkCondition, frame_bytes
from netsim.links import tbf


def test_an_ideal_link_has_no_discipline():
    assert tbf.qdisc(LinkCondition()) == {}


def test_the_queue_holds_the_burst_and_the_queue():
    assert tbf.qdisc(LinkCondition(rate_mbit=100, queue_ms=200)) == {
        "kind": "tbf",
        "rate": 12_500_000,
        "burst": 70_000,
        "limit": 2_570_000,
    }


@pytest.mark.parametrize("rate_mbit", [None, 1, 10, 100, 1000, 34_000])
def test_a_burst_holds_a_gso_packet_and_with_it_two_frames(rate_mbit):
    burst = LinkCondition(rate_mbit=rate_mbit).burst_bytes
    assert burst >= 64 * 1024 > 2 * frame_bytes()


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"rate_mbit": 34_001}, "rate_mbit=34001 is over 34000 .* 32 bits of bytes per second"),
        ({"rate_mbit": 34_000, "queue_ms": 2000}, "queue_ms=2000 .* length in 32 bits"),
    ],
)
def test_refuses_what_the_kernel_cannot_hold(values, reason):
    with pytest.raises(ValueError, match=reason):
        tbf.check(LinkCondition(**values))


def test_a_queue_that_the_kernel_cannot_hold_is_as_long_as_it_can():
    assert tbf.qdisc(LinkCondition(rate_mbit=34_000, queue_ms=2000))["limit"] == 2**32 - 1


@pytest.mark.root
def test_the_kernel_has_the_tbf_that_was_asked_for_on_both_ends(scenario):
    asked = {"kind": "tbf", "rate": 12_500_000, "limit": 2_570_000, "burst": pytest.approx(70_000)}
    assert scenario("hub_qdisc") == asked
    assert [worker["qdisc"] for worker in scenario("traffic")[:3]] == [asked] * 3
