"""All-reduces by halving and doubling, against sums written out by hand."""

from dataclasses import replace

import numpy as np
import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import wire_per_payload
from netsim.timeline.cost_model import CostModel
from netsim.timeline.lanes import Lanes, Ready
from netsim.timeline.tcp.windows import Window
from netsim.timeline.transport import GLOO
from tests.netsim.operations import of_all
from tests.netsim.timeline.test_cost_model import IDEAL, OPEN, cost_of, seconds_of

WIRE_PER_PAYLOAD = wire_per_payload()

HALVING = replace(IDEAL, halving_doubling_bytes=1e12)
NETWORK = NetworkCondition(rate_mbit=100, delay_ms=5)
BYTE_S = WIRE_PER_PAYLOAD * 8e-8
BYTES = 1_200_000

SWAPPED = {2: [1 / 2], 3: [1 / 2], 4: [1 / 2, 1 / 4], 6: [1 / 2, 1 / 4], 8: [1 / 2, 1 / 4, 1 / 8]}
"""Of all bytes, in one swap after the other; once again on the way back."""


@pytest.mark.parametrize("num_workers", SWAPPED)
@pytest.mark.parametrize("rendezvous", [False, True])
def test_it_takes_its_swaps_and_a_round_trip_for_each(num_workers, rendezvous):
    swaps = SWAPPED[num_workers]
    has_beyond = num_workers not in (2, 4, 8)
    bytes_s = (2 * sum(swaps) + 2 * has_beyond) * BYTES * BYTE_S
    num_delays = 2 * len(swaps) * (1 + rendezvous) + has_beyond * (2 + rendezvous)
    transport = replace(HALVING, rendezvous=rendezvous)
    operation = of_all("all_reduce_mean", BYTES, num_workers)
    seconds = seconds_of(operation, NETWORK, num_workers, transport)
    assert seconds == pytest.approx(bytes_s + num_delays * 0.005)


@pytest.mark.parametrize(
    ("num_workers", "sent"),
    [
        (2, [1, 1]),
        (4, [1.5] * 4),
        (6, [2.5, 2.5, 1.5, 1.5, 1, 1]),  # 4 and 5 hand over to 0 and 1
        (8, [1.75] * 8),
    ],
)
def test_what_each_worker_sends_and_how_long_its_links_are_busy(num_workers, sent):
    operation = of_all("all_reduce_mean", BYTES, num_workers)
    cost = cost_of(operation, NETWORK, num_workers, HALVING)
    sent_bytes = BYTES * np.array(sent)
    assert cost.sent_bytes == pytest.approx(sent_bytes)
    assert cost.busy_s[:num_workers] == pytest.approx(sent_bytes * BYTE_S)
    assert cost.busy_s[num_workers : 2 * num_workers] == pytest.approx(sent_bytes * BYTE_S)
    num_swaps = 2 * len(SWAPPED[num_workers])
    power = 2 ** len(SWAPPED[num_workers])
    assert cost.num_messages == num_swaps * power + 2 * (num_workers - power)
    assert cost.drain_s == pytest.approx(0.005)
    assert cost.rtt_s == pytest.approx(0.01)


def test_gloo_took_about_as_long_for_small_messages_far_away():
    """8 workers, 100 Mbit/s, 25 ms, no loss: 306 ms for 4 kB, where the ring took 710; 4 workers:
    205 and 306.
    """
    wan = NetworkCondition(rate_mbit=100, delay_ms=25)
    for num_workers, halving_s, ring_s in ((8, 0.306, 0.710), (4, 0.205, 0.306)):
        operation = of_all("all_reduce_mean", 4000, num_workers)
        for limit, measured_s in ((4000, halving_s), (3999, ring_s)):
            transport = replace(GLOO, halving_doubling_bytes=limit)
            model = CostModel(wan, num_workers, transport, backend="switch")
            seconds = model.cost(operation, model.at(0)[0]).seconds
            assert seconds == pytest.approx(measured_s, rel=0.02)


def test_swaps_of_a_node_s_workers_share_its_link():
    """Two workers a node: both halves leave at once by the node's link, there and back; the
    quarters stay inside, where nothing takes time.
    """
    nodes = {"size": 2, "between": {"rate_mbit": 100, "delay_ms": 10}}
    operation = of_all("all_reduce_mean", BYTES, 4)
    seconds = seconds_of(operation, NetworkCondition(nodes=nodes), 4, HALVING)
    assert seconds == pytest.approx(2 * (2 * BYTES / 2 * BYTE_S + 0.01), rel=1e-6)


def test_each_connection_opens_its_own_window():
    """4 workers: half of 80 kB to one peer, a quarter to another: 10 packets and up to 20 a round
    trip later, each time. On the way back both windows are open.
    """
    operation = of_all("all_reduce_mean", 80_000, 4)
    cold, warm = (cost_of(operation, NETWORK, 4, HALVING, window) for window in (14_480, OPEN))
    assert cold.seconds - warm.seconds == pytest.approx(2 * (0.01 - 14_480 * BYTE_S))
    half_of_what_the_link_holds = 0.5 * 0.01 / BYTE_S
    assert [window.num_bytes for window in cold.windows] == pytest.approx(
        [half_of_what_the_link_holds, 40_000]  # where the doubling ends; twice what was in flight
    )


def test_a_window_closes_while_others_swap():
    """8 workers, 150 ms: the first peers have opened their window from 200 to 400 kB, and are idle
    for four swaps of 300 ms and a round trip, which are three timeouts of 0.2 s and a round trip.
    So 50 kB are left for 200, and the rest waits for two round trips. The second peers are idle for
    two swaps and a round trip, one timeout: 100 kB are left for as many.
    """
    far = NetworkCondition(rate_mbit=100, delay_ms=150)
    operation = of_all("all_reduce_mean", 400_000, 8)
    transport = replace(HALVING, rendezvous=True)
    kept, closed = (
        seconds_of(operation, far, 8, replace(transport, slow_start_after_idle=idle), 200_000)
        for idle in (False, True)
    )
    assert closed - kept == pytest.approx(0.6 - 150_000 * BYTE_S)


def test_small_swaps_have_fewer_streams_and_all_are_counted():
    """Of 80 kB to one peer and 40 kB to the other, in parts of 20 kB at least: 4 and 2 streams."""
    striped = replace(HALVING, streams=8, smallest_part_bytes=20_000)
    cost = cost_of(of_all("all_reduce_mean", 160_000, 4), NETWORK, 4, striped)
    assert cost.num_messages == 2 * (4 * 4 + 4 * 2)


def test_the_slowest_pair_of_a_step_counts():
    condition = NetworkCondition(rate_mbit=100, workers={1: {"up": {"rate_mbit": 10}}})
    seconds = seconds_of(of_all("all_reduce_mean", BYTES, 4), condition, 4, HALVING)
    assert seconds == pytest.approx(10 * 1.5 * BYTES * BYTE_S)


def test_under_loss_every_swap_may_wait_for_a_repair():
    lossy = replace(NETWORK, loss_pct=1)
    operation = of_all("all_reduce_mean", 4000, 8)
    clean_s, lossy_s = (seconds_of(operation, c, 8, HALVING) for c in (NETWORK, lossy))
    # One packet of four at a time: 4 % wait for 20 ms or, if the probe is lost too, 210.
    assert lossy_s - clean_s == pytest.approx(6 * (0.0394 * 0.02 + 4e-4 * 0.19), rel=0.3)


@pytest.mark.parametrize("num_workers", [2, 4, 6])
def test_over_a_link_that_is_down_it_sends_as_much_and_never_ends(num_workers):
    """What it has sent counts from its start, also in an outage. Windows stay as they are."""
    cut = replace(NETWORK, faults=[{"worker": 1, "at_s": 0, "for_s": 1}])
    operation = of_all("all_reduce_mean", BYTES, num_workers)
    healthy = cost_of(operation, NETWORK, num_workers, HALVING, 14_480)
    down = cost_of(operation, cut, num_workers, HALVING, 14_480)
    assert down.seconds == np.inf
    assert down.windows == (Window(14_480),) * len(healthy.windows)
    for name in ("busy_s", "sent_bytes", "num_messages", "drain_s", "rtt_s"):
        assert getattr(down, name) == pytest.approx(getattr(healthy, name)), name


@pytest.mark.parametrize("every_s", [None, 10])
@pytest.mark.parametrize("transport", [HALVING, replace(GLOO, halving_doubling_bytes=1e12)])
def test_it_waits_for_the_end_of_an_outage(every_s, transport):
    """From 1.5 s on, half a second; then it takes what it takes over links that are up."""
    fault = {"worker": 1, "at_s": 1, "for_s": 1} | ({"every_s": every_s} if every_s else {})
    cut = replace(NETWORK, faults=[fault])
    operation = of_all("all_reduce_mean", BYTES, 4)
    ends_s = []
    for condition in (NETWORK, cut):
        lanes = Lanes(CostModel(condition, 4, transport), 1, records_events=False)
        for _ in range(2):
            lanes.put(0, Ready(np.full(4, 1.5)))
            lanes.put(0, operation)
            lanes.run()
            ends_s.append(lanes.times_s(0).max())
    first_s, second_s, late_s, after_it_s = ends_s
    assert late_s - first_s == pytest.approx(0.5)
    assert second_s < after_it_s <= late_s + (first_s - 1.5)
