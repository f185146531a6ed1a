"""Lanes of their own, without training around them, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from host.errors import UserError
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


@pytest.mark.parametrize("schedule", [[], [{"at_s": 2, "rate_mbit": 50}]], ids=["even", "slower"])
def test_one_worker_that_is_its_own_peer_waits_for_nobody(schedule):
    lanes = lanes_of(1, NetworkCondition(rate_mbit=100, schedule=schedule))
    lanes.put(0, Ready(np.array([1.5])))
    lanes.put(0, of_all("exchange", SECOND, 1, 0))
    lanes.run()
    assert lanes.times_s(0) == pytest.approx([1.5])
    assert lanes.bytes_sent == pytest.approx([0])


def test_one_message_that_never_arrives_is_told():
    cut = NetworkCondition(rate_mbit=100, workers={2: {"down": {"loss_pct": 100}}})
    lanes = lanes_of(3, cut)
    lanes.put(0, exchange(1, 3))
    with pytest.raises(UserError, match="exchange never ends: a link that it needs is down"):
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


def late_by(seconds: float, *ranks: int, num_workers: int) -> Ready:
    """Some come later than the others, who come at once."""
    at_s = np.zeros(num_workers)
    at_s[list(ranks)] = seconds
    return Ready(at_s)


def test_operations_in_a_row_are_all_told():
    lanes = lanes_of(2)
    for operation in (gather(1), exchange(2), gather(3)):
        lanes.put(0, operation)
    lanes.run()
    told = [(e.name, round(e.start_s, 3), round(e.end_s, 3)) for e in lanes.events]
    expected = [("all_gather", 0, 1), ("exchange", 1, 3), ("all_gather", 3, 6)]
    assert told == [one for one in expected for _ in range(2)]


COLD = replace(OPEN, initial_window_bytes=14_480)


@pytest.mark.parametrize("operation", [exchange(0.5, 3), gather(0.5, 3)])
def test_connections_are_idle_from_the_last_end_to_the_last_start(operation):
    """Whoever comes early only waits. Windows are small again after ten
    seconds."""
    far = NetworkCondition(rate_mbit=100, delay_ms=50)
    took_s = []
    for late_s in (0.0, 10.0):
        lanes = lanes_of(3, far, transport=COLD)
        for at_s in (0.0, late_s):
            begin_s = lanes.times_s(0).max() + at_s
            lanes.put(0, Ready(np.array([0.0, begin_s, 0.0])))
            lanes.put(0, operation)
            lanes.run()
            took_s.append(float(lanes.times_s(0).max() - begin_s))
    first_s, again_s, first_as_well_s, after_a_rest_s = took_s
    assert first_s == first_as_well_s
    assert again_s < after_a_rest_s - 0.5 < first_s


def test_an_early_end_is_no_rest_while_others_are_at_it():
    """Worker 1 of three comes ten seconds late, so that 0 is through long before 2."""
    far = NetworkCondition(rate_mbit=100, delay_ms=50)
    lanes = lanes_of(3, far, transport=COLD)
    lanes.put(0, late_by(10, 1, num_workers=3))
    took_s = []
    for _ in range(2):
        begin_s = lanes.times_s(0).max()
        lanes.put(0, exchange(0.5, 3))
        lanes.run()
        took_s.append(float(lanes.times_s(0).max() - begin_s))
    assert took_s[0] > 11 and took_s[1] < 1  # 1.3 after ten seconds of rest


@pytest.mark.parametrize(
    ("operation", "latency_s"), [(exchange(0.001, 3), 0.1), (gather(0.001, 3), 0.2)]
)
def test_one_link_on_which_others_bytes_are_is_enough_to_be_behind_them(operation, latency_s):
    """Workers 0 and 1 have half a second of bytes on their links, and 2 has none."""
    far = NetworkCondition(rate_mbit=100, delay_ms=100)
    lanes = lanes_of(3, far)
    lanes.put(0, Operation(name="exchange", num_bytes=SECOND, ranks=(0, 1), peers=(1, 0)))
    lanes.put(1, Ready(np.full(3, 0.5)))
    lanes.put(1, operation)
    lanes.run()
    assert lanes.times_s(1) == pytest.approx([0.5 + 0.001 + 2 * latency_s] * 3, abs=1e-3)


def test_times_that_were_told_stay_as_they_were_told():
    """Though a second lane makes the first one slower later on."""
    lanes = lanes_of(2)
    lanes.put(0, exchange(1))
    lanes.run()
    told_s = lanes.times_s(0)
    assert told_s == pytest.approx([1, 1])
    lanes.put(1, exchange(1))
    lanes.run()
    assert told_s == pytest.approx([1, 1])
    assert lanes.times_s(0) == pytest.approx([2, 2])


def test_a_message_under_way_when_links_change_has_begun_at_the_old_rate():
    """At 1 s all get half as fast: the first message, of 0.5 s on, is half through, the other one
    begins later.
    """
    slower = NetworkCondition(rate_mbit=100, schedule=[{"at_s": 1, "rate_mbit": 50}])
    lanes = lanes_of(2, slower)
    lanes.put(0, Ready(np.array([0.5, 1.5])))
    lanes.put(0, exchange(1))
    lanes.run()
    assert lanes.times_s(0) == pytest.approx([1.5 + 2, 1 + 2 * 0.5])


def test_outages_that_never_end_are_of_no_matter_to_what_is_through_between_two():
    faults = [{"worker": 1, "at_s": 1, "for_s": 2, "every_s": 10}]
    lanes = lanes_of(2, NetworkCondition(rate_mbit=100, faults=faults))
    for operation, expected_s in ((exchange(0.75), 0.75), (gather(0.5), 3.25)):
        lanes.put(0, operation)
        lanes.run()
        assert lanes.times_s(0) == pytest.approx([expected_s] * 2)


def test_what_is_through_at_the_moment_of_an_outage_is_through():
    lanes = lanes_of(2)
    lanes.put(0, gather(1))
    lanes.run()
    end_s = float(lanes.times_s(0).max())
    cut = NetworkCondition(rate_mbit=100, faults=[{"worker": 1, "at_s": end_s, "for_s": 9}])
    lanes = lanes_of(2, cut)
    lanes.put(0, gather(1))
    lanes.run()
    assert lanes.times_s(0) == pytest.approx([end_s] * 2)


def test_what_takes_no_time_is_through_at_once_also_after_links_have_changed():
    slower = NetworkCondition(rate_mbit=100, schedule=[{"at_s": 1, "rate_mbit": 50}])
    lanes = lanes_of(2, slower)
    lanes.put(0, Ready(np.array([0.5, 1.5])))
    lanes.put(0, Operation(name="exchange", num_bytes=0, ranks=(0, 1), peers=(1, 0)))
    lanes.run()
    assert lanes.times_s(0) == pytest.approx([1.5, 1.5])


HELD = replace(OPEN, socket_bytes=0)
"""A sender is done when the last byte has left."""


@pytest.mark.parametrize("operation", [exchange(1), gather(1)])
def test_bytes_move_and_are_handed_over_as_fast_as_links_are_then(operation):
    """At 25 Mbit/s a quarter is there after 1 s, and the rest 0.75 s later."""
    faster = NetworkCondition(rate_mbit=25, schedule=[{"at_s": 1, "rate_mbit": 100}])
    lanes = lanes_of(2, faster, transport=HELD)
    lanes.put(0, operation)
    lanes.run()
    assert lanes.times_s(0) == pytest.approx([1.75] * 2)


def test_a_message_that_begins_in_an_outage_is_handed_over_after_it():
    cut = NetworkCondition(rate_mbit=100, faults=[{"worker": 1, "at_s": 1, "for_s": 1}])
    for transport in (HELD, OPEN):
        lanes = lanes_of(2, cut, transport=transport)
        lanes.put(0, Ready(np.full(2, 1.5)))
        lanes.put(0, exchange(0.25))
        lanes.run()
        assert lanes.times_s(0) == pytest.approx([2.25] * 2)


def test_what_stays_with_its_worker_is_handed_over_though_its_link_is_down():
    cut = NetworkCondition(rate_mbit=100, workers={2: {"up": {"loss_pct": 100}}})
    lanes = lanes_of(3, cut, transport=HELD)
    lanes.put(0, Operation(name="exchange", num_bytes=SECOND, ranks=(0, 1, 2), peers=(1, 0, 2)))
    lanes.run()
    assert lanes.times_s(0) == pytest.approx([1, 1, 0])


TENTHS = st.integers(1, 9).map(lambda tenths: tenths / 10)


@given(rates=st.lists(st.integers(20, 100), max_size=6), start_s=TENTHS, for_s=TENTHS)
@example(rates=[], start_s=0.1, for_s=0.5)
def test_an_outage_is_of_no_matter_to_messages_that_are_through(rates, start_s, for_s):
    """Worker 2 is through with its two messages before it fails at 2 s; those from 3 to 0 and from
    0 to 1 take 2.5 s.
    """
    times_s = []
    steps = [{"at_s": index / 7, "rate_mbit": rate} for index, rate in enumerate(rates, start=1)]
    for faults in (None, [{"worker": 2, "at_s": 2, "for_s": for_s}]):
        condition = NetworkCondition(
            rate_mbit=100,
            workers={0: {"rate_mbit": 4}},
            schedule=steps or None,
            faults=faults,
        )
        lanes = lanes_of(4, condition)
        lanes.put(0, Ready(np.array([0, start_s, start_s / 3, 0])))
        lanes.put(0, exchange(0.1, 4))
        lanes.run()
        times_s.append(lanes.times_s(0))
    unharmed_s, harmed_s = times_s
    assert unharmed_s.min() < 2 < unharmed_s.max()
    assert harmed_s == pytest.approx(unharmed_s, rel=1e-9)


@pytest.mark.parametrize(("seconds", "ends_s"), [(1, (12, 12)), (0.1, (11.1, 10.2))])
@pytest.mark.parametrize("of", [gather, exchange])
def test_what_waits_for_an_outage_shares_the_link_after_it(of, seconds, ends_s):
    outage = {"worker": 1, "at_s": 0, "for_s": 10}
    lanes = lanes_of(2, NetworkCondition(rate_mbit=100, faults=[outage]))
    for lane, part_s in enumerate((1, seconds)):
        lanes.put(lane, of(part_s))
    lanes.run()
    for lane, end_s in enumerate(ends_s):
        assert lanes.times_s(lane) == pytest.approx([end_s] * 2)


@pytest.mark.parametrize("of", [gather, exchange])
def test_what_waits_for_an_outage_shares_the_link_at_the_rate_after_it(of):
    """Lanes need 10 s and 1 s from 10 s on."""
    outage = {"worker": 1, "at_s": 0, "for_s": 10}
    slower = [{"at_s": 5, "rate_mbit": 10}]
    lanes = lanes_of(2, NetworkCondition(rate_mbit=100, schedule=slower, faults=[outage]))
    for lane, part_s in enumerate((1, 0.1)):
        lanes.put(lane, of(part_s))
    lanes.run()
    for lane, end_s in enumerate((21, 12)):
        assert lanes.times_s(lane) == pytest.approx([end_s] * 2)


def test_messages_over_other_links_do_not_wait_for_an_outage():
    """Worker 1 is cut off from 1 s on: what worker 2 sends to worker 3 meets no bytes of others."""
    outage = {"worker": 1, "at_s": 1, "for_s": 10}
    lanes = lanes_of(4, NetworkCondition(rate_mbit=100, faults=[outage]))
    for lane, at_s in enumerate((0, 2.5)):
        lanes.put(lane, Ready(np.full(4, at_s)))
        lanes.put(lane, exchange(2, 4))
    lanes.run()
    assert lanes.times_s(0) == pytest.approx([2, 12 + 1, 12 + 1, 2])
    assert lanes.times_s(1) == pytest.approx([4.5, 14, 14, 4.5])


@pytest.mark.parametrize("of", [gather, exchange])
@pytest.mark.parametrize(("delays_ms", "end_s"), [((500, 0), 2.2), ((0, 500), 2.5)])
def test_the_last_byte_takes_the_delay_of_the_moment_at_which_it_leaves(of, delays_ms, end_s):
    """Of 2 s of bytes. Where the delay falls, 0.4 of the whole were through at 1 s."""
    before_ms, after_ms = delays_ms
    schedule = [{"at_s": 1, "delay_ms": after_ms}]
    lanes = lanes_of(2, NetworkCondition(rate_mbit=100, delay_ms=before_ms, schedule=schedule))
    lanes.put(0, of(2))
    lanes.run()
    assert lanes.times_s(0) == pytest.approx([end_s] * 2)
