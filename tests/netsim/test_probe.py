import pytest

from netsim import probe
from netsim.errors import ProbeError


def test_a_single_worker_has_no_link_to_measure():
    assert probe.achieved_rate_mbit(0, ["10.0.0.1"]) is None


def test_slots_are_measured_between_arrivals_and_their_median_counts():
    rates_mbyte = [100, 1, 9, 1]  # the warm-up, and three slots of a second
    arrivals, num_bytes = [(5.0, 0)], 0
    for second, rate in enumerate(rates_mbyte):
        for tenth in range(1, 11):
            num_bytes += rate * 100_000
            arrivals.append((5 + second + tenth / 10, num_bytes))
    assert probe._median_rate_mbit(arrivals, 3, peer=1, warm_up_s=1) == pytest.approx(8)


@pytest.mark.parametrize("arrivals", [[], [(0.0, 1000)], [(0.0, 1000), (0.2, 2000), (0.7, 3000)]])
def test_too_few_arrivals_are_no_rate(arrivals):
    with pytest.raises(ProbeError, match=r"What worker 3 sent in 0\.6 s is too little"):
        probe._median_rate_mbit(arrivals, 0.6, peer=3)


def test_slow_links_are_measured_for_longer():
    seconds = {rate: probe.measuring_seconds(rate) for rate in (None, 1000, 100, 10, 1)}
    assert seconds == {None: 0.6, 1000: 0.6, 100: 0.6, 10: 3, 1: 10}


def test_a_network_more_than_5_percent_off_is_refused_with_both_rates():
    probe.check(100, 95.1)
    probe.check(100, 104.9)
    with pytest.raises(ProbeError, match=r"90\.0 Mbit/s where 100 were asked for \(-10\.0 %\)"):
        probe.check(100, 90)
    with pytest.raises(ProbeError, match=r"\(\+6\.0 %\)"):
        probe.check(100, 106)


@pytest.mark.root
def test_shaped_workers_achieve_the_rate(scenario):
    """The best of three, since a busy host slows a link but never makes it faster for long."""
    for measured in scenario("rates")[:4]:
        deviations = [probe.deviation_pct(100, rate) for rate in measured]
        assert min(map(abs, deviations)) < 5, measured


@pytest.mark.root
def test_a_probe_names_the_neighbour_who_never_comes(scenario):
    silent, *others = scenario("silent_neighbour")[:3]
    assert silent is None
    assert "worker 0" in others[0].lower()
    assert "worker 0" in others[1].lower()
