import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.links import kernel, netem
from netsim.links.kernel import KernelShaper
from netsim.links.netlink import INTERFACE


@pytest.fixture
def calls(monkeypatch) -> list:
    """What the kernel would be asked for."""
    made = []

    class Links:
        def __getattr__(self, name: str):
            return lambda *args, **kwargs: made.append((name, *args))

    monkeypatch.setattr(kernel, "netlink", Links())
    return made


@pytest.mark.parametrize(
    ("values", "is_single"),
    [({"delay_ms": 5}, False), ({"loss_pct": 1}, True), ({"workers": {2: {"loss_pct": 1}}}, True)],
)
def test_workers_send_frame_by_frame_where_any_link_loses_packets(calls, values, is_single):
    shaper = KernelShaper(NetworkCondition(rate_mbit=100, **values), 3, "netem", netem.qdisc)
    shaper.set_up_worker(0)
    assert (("send_single_frames", INTERFACE) in calls) is is_single
