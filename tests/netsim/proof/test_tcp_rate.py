import pytest

from netsim.errors import ProbeError
from netsim.proof import tcp_rate
from tests.busy_host import may_be_slowed


def test_slow_links_are_measured_for_longer():
    seconds = {rate: tcp_rate.measuring_seconds(rate) for rate in (None, 1000, 100, 10, 1)}
    assert seconds == {None: 0.6, 1000: 0.6, 100: 0.6, 10: 3, 1: 10}


def test_a_network_more_than_5_percent_off_is_refused_with_both_rates():
    tcp_rate.check(100, 95.1)
    tcp_rate.check(100, 104.9)
    with pytest.raises(ProbeError, match=r"90\.0 Mbit/s where 100 were asked for \(-10\.0 %\)"):
        tcp_rate.check(100, 90)
    with pytest.raises(ProbeError, match=r"\(\+6\.0 %\)"):
        tcp_rate.check(100, 106)


@pytest.mark.root
@pytest.mark.parametrize("name", ["broken_meetings", "broken_rates"])
def test_a_connection_that_breaks_ends_the_probe_of_all_and_not_the_next(scenario, name):
    assert scenario(name)[:4] == [["BrokenProbeError", "measured"]] * 4


@pytest.mark.root
@may_be_slowed
def test_a_probe_names_the_neighbour_who_never_comes(scenario):
    silent, *others = scenario("silent_neighbour")[:3]
    assert silent is None
    assert "worker 0" in others[0].lower()
    assert "worker 0" in others[1].lower()
