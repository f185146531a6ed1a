import pytest

from netsim.links.counters import bytes_sent


def test_a_missing_interface_is_named():
    with pytest.raises(ValueError, match="no interface 'eth77'"):
        bytes_sent("eth77")


@pytest.mark.root
def test_traffic_between_workers_is_counted_once_at_each_end(scenario):
    sender, receiver, bystander, _ = scenario("traffic")
    assert 1_000_000 < sender["sent"] < 1_050_000
    assert 1_000_000 < receiver["received"] < 1_050_000
    assert bystander["sent"] < 10_000 > bystander["received"]
