import socket

import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import LinkCondition
from netsim.links import switch
from netsim.links.switch import check_switch
from tests.busy_host import may_be_slowed


def test_refuses_a_delay_below_the_reach_of_its_timer():
    check_switch(LinkCondition(delay_ms=0.05))
    check_switch(LinkCondition())
    with pytest.raises(ValueError, match=r"delay_ms=0\.01 is under 0\.05, below the reach"):
        check_switch(LinkCondition(delay_ms=0.01))


class OnePort:
    """Stands in for a `Port`, with packets that were stamped at these times."""

    def __init__(self):
        self.stamps_s, self.was_emptied = [], False

    def packets(self):
        yield from ((stamp_s, b"packet") for stamp_s in self.stamps_s)
        self.stamps_s, self.was_emptied = [], True


@pytest.mark.parametrize(("set_on_s", "arrived_s"), [(0, 10.5), (60, 10.0), (-60, 11.0)])
def test_a_wall_clock_that_is_set_puts_no_packet_before_the_last_look(
    set_on_s, arrived_s, monkeypatch
):
    port, taken = OnePort(), []
    with socket.socket() as control:
        own = switch._Switch(NetworkCondition(delay_ms=1), [port], control)
    monkeypatch.setattr(own._forwarder, "take", lambda rank, packet, at_s: taken.append(at_s))
    monkeypatch.setattr(switch.time, "time", lambda: 1010.0)
    own._read(10.0)
    port.stamps_s = [1010.5]
    monkeypatch.setattr(switch.time, "time", lambda: 1011.0 + set_on_s)
    own._read(11.0)
    assert taken == [pytest.approx(arrived_s)]


@pytest.mark.root
def test_each_condition_has_the_back_end_that_can_do_it(scenario):
    has_netem = scenario("delay")["has_netem"]
    assert scenario("backends") == {
        "rate": "tbf",
        "forced": "switch",
        "delay": "netem" if has_netem else "switch",
        "trace": "switch",
        "nodes": "tbf",
    }


@pytest.mark.root
@may_be_slowed
def test_the_switch_delays_and_tcp_is_as_asked_beside_a_probe_that_needs_more(scenario):
    """64 kB in flight are 25 Mbit/s over 20 ms, and the probe still sees the link's 60."""
    outcome = scenario("switched")
    for link, tcp, shared_bytes in outcome["workers"]:
        assert link["achieved_rtt_ms"] > 20
        assert link["achieved_rate_mbit"] == pytest.approx(60, rel=0.05)
        assert tcp["congestion_control"] == "cubic"
        assert (tcp["wmem_max_bytes"], tcp["rmem_max_bytes"]) == (64_000, 200_000)
        assert tcp["slow_start_after_idle"] is False
        assert tcp["unsent_bytes"] == 131_072
        assert shared_bytes == 16_384
    assert outcome["counters"]["num_forwarded"] > 1000
    assert outcome["counters"]["num_lost"] == outcome["counters"]["num_dropped"] == 0


@pytest.mark.root
@may_be_slowed
def test_jumbo_frames_reach_everybody_at_the_rate_asked_for(scenario):
    """The best of three: a busy host slows a link but never makes it faster for long."""
    outcome = scenario("jumbo")
    for links, tcp in outcome["switch"] + outcome["bridges"]:
        assert tcp["mtu"] == 9000
        assert len(links) == 3
        assert min(abs(link["achieved_rate_mbit"] - 50) for link in links) < 2.5, links
    assert [tcp["max_segments"] for _, tcp in outcome["switch"]] == [1] * 3
    assert all(link["num_lost"] > 0 for links, _ in outcome["switch"] for link in links)


@pytest.mark.root
def test_a_queue_may_be_longer_than_what_the_kernel_holds(scenario):
    """5 GB before the switch, of which the workers' token buckets hold what 32 bits can say."""
    outcome = scenario("long_queue")
    assert outcome["reached"] == [True] * 3
    assert outcome["limits"] == [2**32 - 1] * 3


@pytest.mark.root
def test_bridges_of_nodes_reach_each_other(scenario):
    assert scenario("two_nodes") == [True] * 3


@pytest.mark.root
def test_garbage_and_arp_storms_do_not_end_the_switch(scenario):
    outcome = scenario("fuzzed")
    assert outcome["reached"] == [True] * 3
    # The storm was at the switch: alone, the three connections are some 40 frames. How many of its
    # 4,000 get through is up to the kernel, which drops what a busy switch does not fetch in time.
    assert outcome["counters"]["num_forwarded"] > 200


@pytest.mark.root
def test_a_flood_puts_no_port_out_of_step_with_the_kernel(scenario):
    """One slot that only the kernel takes for filled holds all later packets up for a round of the
    ring: those of a worker who then waits for answers, for minutes.
    """
    outcome = scenario("flooded_port")
    assert outcome["num_read"] > 100
    assert outcome["num_unread"] > 100
    assert outcome["num_after_later_ones"] == 0


@pytest.mark.root
@may_be_slowed
@pytest.mark.parametrize("name", ["outage", "later_outage"])
def test_a_link_goes_down_and_comes_back_at_its_time(scenario, name):
    answered = scenario(name)
    assert [at_s for at_s in answered if at_s < 0.25]
    assert not [at_s for at_s in answered if 0.35 < at_s < 1.2]
    assert [at_s for at_s in answered if at_s > 1.35]


@pytest.mark.root
def test_the_clock_may_be_set_back_and_on(scenario):
    answered = scenario("outage_put_off")
    assert [at_s for at_s in answered if 0.3 < at_s < 0.7]
    assert not [at_s for at_s in answered if 0.8 < at_s < 1.15]
    assert [at_s for at_s in answered if 1.25 < at_s < 1.75]


@pytest.mark.root
def test_the_switchs_death_is_told_to_the_hub_by_name(scenario):
    assert scenario("dead_switch") == (
        "The switch that joins the workers has died, and their network with it."
    )


@pytest.mark.root
def test_nothing_is_left_whichever_process_is_killed(scenario):
    before, after = scenario("random_kills")
    assert before == after


@pytest.mark.root
@pytest.mark.slow
def test_nothing_is_left_after_thirty_kills(scenario):
    before, after = scenario("many_random_kills")
    assert before == after
