"""Lanes of their own, without training around them, by hand."""

from dataclasses import replace

import numpy as np
import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import wire_per_payload
from netsim.timeline.cost_model import CostModel
from netsim.timeline.lanes import Kernel, Lanes, Mark, Ready, steady_s
from tests.netsim.operations import Operation, of_all
from tests.netsim.timeline.test_cost_model import IDEAL

SECOND = round(12.5e6 / wire_per_payload())
"""Payload bytes that 100 Mbit/s carry in a second."""

OPEN = replace(IDEAL, initial_window_bytes=1e12, socket_bytes=1e12)
EVEN = NetworkCondition(rate_mbit=100)


def lanes_of(
    num_workers: int, condition: NetworkCondition = EVEN, num_lanes: int = 2, transport=OPEN
) -> Lanes:
    return Lanes(CostModel(condition, num_workers, transport), num_lanes, records_events=True)


def exchange(seconds: float, num_workers: int = 2) -> Operation:
    """Around a ring, so long over 100 Mbit/s."""
    return of_all("exchange", round(seconds * SECOND), num_workers, 1)


def gather(seconds: float, num_workers: int = 2) -> Operation:
    return of_all("all_gather", round(seconds * SECOND / (num_workers - 1)), num_workers)


def test_what_was_done_is_told_once_in_the_order_of_its_ends():
    lanes = lanes_of(2)
    for _ in range(2):
        for item in (Ready(np.array([1.0, 2.0])), Kernel(np.array([0.5, 0.25])), gather(1)):
            lanes.put(1, item)
        lanes.run()
        lanes.settle(1)
    told = [
        (e.worker, e.lane, e.name, round(e.start_s, 3), round(e.end_s, 3)) for e in lanes.events
    ]
    assert told == [
        (0, 1, "kernel", 1, 1.5),
        (1, 1, "kernel", 2, 2.25),
        (0, 1, "all_gather", 1.5, 3.25),
        (1, 1, "all_gather", 2.25, 3.25),
        (0, 1, "kernel", 3.25, 3.75),
        (1, 1, "kernel", 3.25, 3.5),
        (0, 1, "all_gather", 3.75, 4.75),
        (1, 1, "all_gather", 3.5, 4.75),
    ]


def test_how_long_lanes_had_work_counts_from_the_last_to_come_to_the_last_to_be_through():
    lanes = lanes_of(3)
    lanes.put(1, Ready(np.array([0.0, 2.0, 1.0])))
    lanes.put(1, Kernel(np.array([0.5, 0.25, 0.125])))
    lanes.put(1, exchange(1, 3))
    lanes.put(1, Kernel(0.5))
    lanes.put(1, Mark())
    lanes.run()
    lanes.settle(1)
    assert lanes.operating_s == pytest.approx([0, 1])
    assert lanes.kernels_s == pytest.approx([0, 0.5 + 0.5])
    assert lanes.times_s(1) == pytest.approx([2.625, 2.75, 3.75])


def test_what_is_ahead_of_an_operation_is_known_before_it_starts():
    lanes = lanes_of(2)
    mark = Mark()
    for item in (Ready(np.array([1.0, 2.0])), Kernel(0.5), mark, gather(1)):
        lanes.put(0, item)
    lanes.run()
    assert mark.end_s == pytest.approx([1.5, 2.5])
    assert lanes.times_s(0) == pytest.approx([3.5, 3.5])


def test_while_links_change_each_message_goes_on_by_itself():
    """Worker 0 sends from 0.5 s on, worker 1 from 1.5 on; at 2 s all get half as fast. So the first
    is through before, and half of the other's is left.
    """
    slower = NetworkCondition(rate_mbit=100, schedule=[{"at_s": 2, "rate_mbit": 50}])
    lanes = lanes_of(2, slower)
    lanes.put(0, Ready(np.array([0.5, 1.5])))
    lanes.put(0, exchange(1))
    lanes.run()
    assert lanes.times_s(0) == pytest.approx([2.0 + 2 * 0.5, 1.5])


def test_one_message_that_never_arrives_is_told():
    cut = NetworkCondition(rate_mbit=100, workers={2: {"down": {"loss_pct": 100}}})
    lanes = lanes_of(3, cut)
    lanes.put(0, exchange(1, 3))
    with pytest.raises(ValueError, match="exchange never ends: a link that it needs is down"):
        lanes.run()


@pytest.mark.parametrize("operation", [exchange(0.001), gather(0.001)])
@pytest.mark.parametrize(("left_s", "later_s"), [(0.5, 0.1), (0.1, 0.05)])
def test_behind_another_lane_latencies_are_twice_as_long_or_by_half_of_what_is_there(
    operation, left_s, later_s
):
    """A second of bytes is on the links when an operation of 1 ms of bytes starts."""
    far = NetworkCondition(rate_mbit=100, delay_ms=100)
    lanes = lanes_of(2, far)
    lanes.put(0, exchange(1))
    lanes.put(1, Ready(np.full(2, 1 - left_s)))
    lanes.put(1, operation)
    lanes.run()
    assert lanes.times_s(1) == pytest.approx([1 - left_s + 0.001 + 0.1 + later_s] * 2, abs=1e-6)
    assert lanes.times_s(0) == pytest.approx([1 + 0.001 + 0.1] * 2, abs=1e-6)


def test_links_between_nodes_are_shared_from_when_the_first_message_comes_there():
    """Two messages each way take 2 s there. When the second lane's come, after 0.5 and 1 s, 1.5 and
    1 s of the first lane's are left.
    """
    nodes = {"size": 2, "between": {"rate_mbit": 100}}
    lanes = lanes_of(4, NetworkCondition(rate_mbit=1000, nodes=nodes))
    swap = Operation(name="exchange", num_bytes=SECOND, ranks=(0, 1, 2, 3), peers=(2, 3, 0, 1))
    lanes.put(0, swap)
    lanes.put(1, Ready(np.array([0.5, 0.5, 1.0, 1.0])))
    lanes.put(1, swap)
    lanes.run()
    assert lanes.times_s(0) == pytest.approx([1 + 2 * 1, 1 + 2 * 1, 0.5 + 3, 0.5 + 3])
    assert lanes.times_s(1) == pytest.approx([4.0] * 4)


def test_one_of_many_takes_what_all_take_by_their_number():
    model = CostModel(NetworkCondition(rate_mbit=100, delay_ms=10), 2, OPEN)
    assert steady_s(model, exchange(1)) == pytest.approx(1.01)
    late = NetworkCondition(rate_mbit=100, workers={1: {"up": {"delay_ms": 30}}})
    assert steady_s(CostModel(late, 2, OPEN), gather(1)) == pytest.approx(1.03)
