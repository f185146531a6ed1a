import pytest

from netsim import netem
from netsim.condition import NetworkCondition


def test_an_ideal_link_has_no_discipline():
    assert netem.qdisc(NetworkCondition()) == {}


def test_the_queue_of_tbf_holds_the_burst_and_the_queue():
    assert netem.qdisc(NetworkCondition(rate_mbit=100, queue_ms=200)) == {
        "kind": "tbf",
        "rate": 12_500_000,
        "burst": 70_000,
        "limit": 2_570_000,
    }


def test_only_the_arguments_of_netem_as_many_kernels_lack_it():
    condition = NetworkCondition(rate_mbit=100, delay_ms=5, jitter_ms=1, loss_pct=0.5, queue_ms=200)
    packets = (2_500_000 + 6 * 12_500) / 1514
    assert netem.qdisc(condition) == {
        "kind": "netem",
        "delay": 5000,
        "jitter": 1000,
        "loss": 0.5,
        "limit": pytest.approx(packets, abs=2),
        "rate": 12_500_000,
    }


def test_only_the_arguments_of_netem_without_a_rate():
    arguments = netem.qdisc(NetworkCondition(delay_ms=5))
    assert "rate" not in arguments
    assert arguments["limit"] > 1000, "netem's default is too small for a fast link with a delay"


@pytest.mark.root
def test_the_kernel_has_the_tbf_that_was_asked_for_on_both_ends(scenario):
    asked = {"kind": "tbf", "rate": 12_500_000, "limit": 2_570_000, "burst": pytest.approx(70_000)}
    assert scenario("hub_qdisc") == asked
    assert [worker["qdisc"] for worker in scenario("traffic")[:3]] == [asked] * 3


@pytest.mark.root
def test_a_kernel_without_netem_is_named_and_what_to_set_to_zero(scenario):
    outcome = scenario("delay")
    if outcome["has_netem"]:
        assert outcome["error"] is None
    else:
        assert outcome["error"] == (
            "This kernel has no queueing discipline netem: load the module sch_netem or set "
            "delay_ms, jitter_ms and loss_pct to zero."
        )
