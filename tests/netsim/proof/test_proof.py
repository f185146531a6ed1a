import socket
from dataclasses import replace

import pytest

from netsim.__main__ import describe
from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import LinkCondition
from netsim.errors import BrokenProbeError, ProbeError
from netsim.proof import proof
from tests.busy_host import may_be_slowed
from tests.netsim.reports import LINK

CONDITION = NetworkCondition(rate_mbit=100, delay_ms=10, loss_pct=1)


def test_a_single_worker_has_no_link_to_measure():
    assert proof.probe(CONDITION, 0, ["10.0.0.1"]) is None
    proof.check(CONDITION, [None])


def test_a_network_as_asked_for_passes():
    unshaped = replace(LINK, asked_rate_mbit=None, achieved_rate_mbit=9000)
    proof.check(CONDITION, [LINK, unshaped, replace(LINK, achieved_rtt_ms=21.9)])


@pytest.mark.parametrize(
    ("off", "numbers"),
    [
        ({"achieved_rate_mbit": 90}, r"90\.0 Mbit/s where 100 were"),
        ({"achieved_rtt_ms": 22.1}, r"workers 2 and 3 takes 22\.10 ms where 20 were"),
        ({"achieved_rtt_ms": 17.9}, r"takes 17\.90 ms"),
        ({"num_lost": 150}, "Of 10000 packets from worker 2 to 3, 150 were lost .* 60 to 140"),
        ({"num_lost": 0}, "0 were lost"),
    ],
)
def test_a_link_that_is_off_is_refused_with_the_numbers(off, numbers):
    with pytest.raises(ProbeError, match=numbers):
        proof.check(CONDITION, [LINK, replace(LINK, **off)])


def test_jitter_widens_what_a_round_trip_may_take():
    condition = replace(CONDITION, jitter_ms=5)
    proof.check(condition, [replace(LINK, achieved_rtt_ms=31)])


def test_where_nothing_was_asked_for_nothing_is_refused():
    unshaped = replace(LINK, asked_rate_mbit=None, asked_rtt_ms=0, asked_loss_pct=0, num_sent=None)
    proof.check(NetworkCondition(), [unshaped])
    with pytest.raises(ProbeError):
        proof.check(NetworkCondition(rate_mbit=100), [replace(unshaped, asked_rate_mbit=100)])


def test_a_host_too_busy_for_a_measurement_fails_those_links_alone_that_ask_for_a_rate(monkeypatch):
    def too_little(*_, **__):
        raise BrokenProbeError("What came is too little to measure a rate")

    monkeypatch.setattr(proof.tcp_rate, "ring_rate_mbit", too_little)
    ends = socket.socketpair()
    shaped, free = LinkCondition(rate_mbit=100), LinkCondition()
    assert proof._arrivals([shaped, free], 0, [], ends).rate_mbit is None
    with pytest.raises(BrokenProbeError):
        proof._arrivals([shaped, free], 1, [], ends)
    for end in ends:
        end.close()
    link = replace(LINK, asked_rate_mbit=None, achieved_rate_mbit=None)
    proof.check(NetworkCondition(), [link])
    assert link.rate_deviation_pct is None
    assert "rate no limit / not measured, the host was busy, round trip" in describe(link)


@pytest.mark.root
@may_be_slowed
def test_shaped_workers_achieve_the_rate_and_the_round_trip(scenario):
    """The best of three: a busy host slows a link but never makes it faster for long."""
    for measured in scenario("proofs")[:4]:
        assert min(abs(link["achieved_rate_mbit"] - 100) for link in measured) < 5, measured
        assert 0 < min(link["achieved_rtt_ms"] for link in measured) < 1, measured


@pytest.mark.root
@may_be_slowed
def test_workers_are_proven_whose_round_trip_is_longer_than_a_second(scenario):
    (*rtts_ms, nothing), (*others_ms, mbit) = scenario("far_neighbours")[:2]
    assert [*rtts_ms, *others_ms] == pytest.approx([1100] * 4, rel=0.05)
    assert nothing is None and mbit > 0


def test_round_trips_that_a_proof_of_minutes_would_take_are_refused():
    slow = NetworkCondition(delay_ms=10, jitter_ms=5, workers={1: {"delay_ms": 4_000}})
    assert proof.round_trip_s(slow, 3) == pytest.approx(4.02)
    assert proof.round_trip_s(NetworkCondition(delay_ms=2_500), 2) == 5
    assert proof.round_trip_s(NetworkCondition(delay_ms=200_000), 1) == 0
    for too_far in (NetworkCondition(delay_ms=2_501), replace(slow, delay_ms=1_000)):
        with pytest.raises(ValueError, match=r"^delay_ms makes round trips of 5\.0.* choose 5 s"):
            proof.round_trip_s(too_far, 3)
