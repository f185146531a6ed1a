import pytest

from netsim.conditions.link import LinkCondition
from netsim.links import netem


def test_an_ideal_link_has_no_discipline():
    assert netem.qdisc(LinkCondition()) == {}


def test_only_the_arguments_of_netem_as_many_kernels_lack_it():
    link = LinkCondition(rate_mbit=100, delay_ms=5, jitter_ms=1, loss_pct=0.5, queue_ms=200)
    packets = (2_500_000 + 6 * 12_500) / 1514
    assert netem.qdisc(link) == {
        "kind": "netem",
        "delay": 5000,
        "jitter": 1000,
        "loss": 0.5,
        "limit": pytest.approx(packets, abs=2),
        "rate": 12_500_000,
    }


def test_only_the_arguments_of_netem_without_a_rate():
    arguments = netem.qdisc(LinkCondition(delay_ms=5))
    assert "rate" not in arguments
    assert arguments["limit"] > 1000, "netem's default is too small for a fast link with a delay"


def test_jitter_has_a_rate_since_only_that_keeps_packets_in_order():
    assert netem.qdisc(LinkCondition(delay_ms=5, jitter_ms=1))["rate"] > 0


@pytest.mark.root
def test_a_kernel_without_netem_is_named_if_one_insists_on_it(scenario):
    outcome = scenario("delay")
    if outcome["has_netem"]:
        assert outcome["error"] is None
    else:
        assert outcome["error"] == (
            "This kernel has no queueing discipline netem: load the module sch_netem, or leave "
            "backend at null for a switch in user space."
        )
