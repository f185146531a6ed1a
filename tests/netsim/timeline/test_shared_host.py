"""What messages wait for beside their links: losses on a path, and a host that carries them all."""

from dataclasses import replace

import numpy as np
import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.timeline import halving_doubling, patterns
from netsim.timeline.cost_model import CostModel
from netsim.timeline.tcp.throughput import recovery_wait_s
from tests.netsim.operations import Operation, of_all
from tests.netsim.timeline.test_cost_model import IDEAL, cost_of, seconds_of


def test_a_ring_waits_for_what_its_worst_path_loses():
    """Pieces of one packet, of which the first worker's alone are lost, at one of its links: in
    each of six hops the latest of four neighbours waits.
    """
    operation = of_all("all_reduce_mean", 4 * 1448, 4)
    clean = NetworkCondition(delay_ms=5)
    lossy = replace(clean, workers={0: {"up": {"loss_pct": 2}}})
    late_s = seconds_of(operation, lossy, 4) - seconds_of(operation, clean, 4)
    assert late_s == pytest.approx(6 * float(recovery_wait_s(1448, 1e9, 0.01, 0.02, 4)), rel=1e-3)


def test_as_many_neighbours_are_coupled_as_theory_has_the_latest_of():
    """The latest of m exponential times is 1 + 1/2 + ... + 1/m of their mean; a round takes twice
    it.
    """
    harmonic = np.cumsum(1 / np.arange(1, 20))
    nearest = int(np.abs(harmonic - 2).argmin()) + 1
    assert patterns._COUPLED == halving_doubling._COUPLED == nearest


def test_who_exchanges_with_himself_takes_no_time():
    operation = Operation(name="exchange", num_bytes=1_000_000, ranks=(0, 1, 2), peers=(1, 0, 2))
    cost = cost_of(operation, NetworkCondition(rate_mbit=100, delay_ms=5), 3)
    assert cost.seconds[2] == 0 < cost.seconds[0] == cost.seconds[1]
    assert cost.sent_bytes.tolist() == [1_000_000, 1_000_000, 0]


def test_data_that_follows_a_lost_notice_tells_of_it():
    """12 notices of 4 workers; one of them is lost with p = 1 - 0.95^12 = 46 %. In an all-to-all
    data follows to the same worker: no timeout of 0.2 s, and the notice is a packet more, of 5.
    """
    lossy = NetworkCondition(delay_ms=5, loss_pct=5)
    operation = of_all("all_to_all", 4 * 4 * 1448, 4)
    without, with_notices = (
        seconds_of(operation, lossy, 4, replace(IDEAL, rendezvous=ready)) for ready in (False, True)
    )
    rtt_s, all_arrive = 0.01, 0.95 ** (12 * 4)
    assert with_notices - without == pytest.approx(
        0.005 + rtt_s * all_arrive * (1 - 0.95**12), rel=1e-3
    )


def test_the_switch_in_user_space_naps_before_large_messages():
    """3,001 bytes a message are large, 3,000 are not; whose receivers' notices are not."""
    transport = replace(IDEAL, switch_nap_s=0.001, switch_bytes_per_s=1e30)
    condition = NetworkCondition(delay_ms=5)
    for num_bytes, nap_s in ((3000, 0.0), (3001, 0.001)):
        operation = of_all("exchange", num_bytes, 4, shift=1)
        for backend, delay_s in (("switch", 0.005 + nap_s), ("netem", 0.005), (None, 0.005)):
            model = CostModel(condition, 4, transport, backend=backend)
            cost = model.cost(operation, model.at(0)[0])
            assert cost.seconds == pytest.approx(delay_s)
            assert cost.rtt_s == pytest.approx(0.005 + delay_s)


def test_the_switch_carries_one_message_after_the_other():
    """12 messages of 5 ms at 1,000 a second take 12 ms more; where they fill the cores instead, as
    long as these need, if that is more.
    """
    operation = of_all("all_to_all", 80, 4)
    each = replace(IDEAL, switch_messages_per_s=1000, local_messages_per_s=1000)
    for delay_ms, backend, expected_s in (
        (5, "switch", 0.017),
        (5, "netem", 0.012),
        (15, "netem", 0.015),
        (5, None, 0.005),
    ):
        model = CostModel(NetworkCondition(delay_ms=delay_ms), 4, each, backend=backend)
        cost = model.cost(operation, model.at(0)[0])
        assert cost.seconds == pytest.approx(expected_s, rel=1e-4), (delay_ms, backend)
        assert cost.host_s == pytest.approx(0.012 if backend else 0, rel=1e-4)
    # A message of a ring's hop waits for half of the others: 6 hops, of 4 messages each.
    model = CostModel(NetworkCondition(delay_ms=5), 4, each, backend="switch")
    unhurried = CostModel(NetworkCondition(delay_ms=5), 4, IDEAL, backend="switch")
    around = [m.cost(of_all("all_reduce_mean", 80, 4), m.at(0)[0]) for m in (model, unhurried)]
    assert around[0].seconds - around[1].seconds == pytest.approx(0.015, rel=1e-3)
    assert around[0].host_s == pytest.approx(0.024, rel=1e-3)
    slow = replace(IDEAL, switch_bytes_per_s=80 * 3 / 4 * 4 / 0.1)
    model = CostModel(NetworkCondition(delay_ms=5), 4, slow, backend="switch")
    assert model.cost(operation, model.at(0)[0]).seconds == pytest.approx(0.1)
