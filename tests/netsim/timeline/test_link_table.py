from itertools import permutations

import numpy as np
import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import wire_per_payload
from netsim.timeline.link_table import LinkSchedule, LinkTable, named_ranks

WIRE_PER_PAYLOAD = wire_per_payload()

HOST_RATE = 1e9
CONDITIONS = [
    NetworkCondition(rate_mbit=100, delay_ms=5, jitter_ms=1, loss_pct=2),
    NetworkCondition(up={"rate_mbit": 10, "delay_ms": 2}, down={"delay_ms": 3}),
    NetworkCondition(rate_mbit=100, workers={1: {"rate_mbit": 10, "up": {"delay_ms": 4}}}),
    NetworkCondition(
        rate_mbit=1000, nodes={"size": 2, "between": {"rate_mbit": 50, "delay_ms": 9}}
    ),
    NetworkCondition(rate_mbit=5, faults=[{"worker": 2, "at_s": 0, "for_s": 9}]),
    NetworkCondition(up={"delay_ms": 2, "jitter_ms": 2}, down={"delay_ms": 3, "jitter_ms": 1}),
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_every_path_is_the_condition_s(condition):
    table = LinkTable(condition, 5, 0, HOST_RATE)
    pairs = np.array(list(permutations(range(5), 2)))
    paths = table.paths(pairs[:, 0], pairs[:, 1])
    for i, (sender, receiver) in enumerate(pairs.tolist()):
        path = condition.path(sender, receiver, at_s=0)
        rate = path.rate_mbit * 125_000 / WIRE_PER_PAYLOAD if path.rate_mbit else HOST_RATE
        assert paths.rate[i] == pytest.approx(rate)
        assert paths.delay_s[i] == pytest.approx(path.delay_ms / 1000)
        assert paths.jitter_s[i] == pytest.approx(path.jitter_ms / 1000)
        assert paths.loss[i] == pytest.approx(path.loss_pct / 100)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_no_path_is_worse_than_the_worst(condition):
    table = LinkTable(condition, 5, 0, HOST_RATE)
    pairs = np.array(list(permutations(range(5), 2)))
    paths, worst = table.paths(pairs[:, 0], pairs[:, 1]), table.worst_path(np.arange(5))
    assert (worst.rate <= paths.rate).all()
    assert (worst.delay_s >= paths.delay_s - 1e-12).all()
    assert (worst.jitter_s >= paths.jitter_s - 1e-12).all()
    assert (worst.loss >= paths.loss - 1e-12).all()


@pytest.mark.parametrize(
    ("asked", "ratio"),
    [
        ({}, 1),
        ({"workers": {0: {"rate_mbit": 10}}}, 0.1),
        ({"workers": {1: {"up": {"rate_mbit": 25}}, 2: {"down": {"rate_mbit": 50}}}}, 0.5),
        ({"workers": {1: {"up": {"rate_mbit": 200}}}}, 1),
        ({"workers": {0: {"rate_mbit": 10}}, "nodes": {"size": 3}}, 0.1),
        ({"workers": {0: {"rate_mbit": 10}}, "nodes": {"size": 2}}, 1),
        ({"faults": [{"workers": [1, 2], "at_s": 0, "for_s": 9}]}, 1),
    ],
)
def test_a_slow_link_is_compared_with_the_slowest_at_the_other_ends(asked, ratio):
    table = LinkTable(NetworkCondition(rate_mbit=100, **asked), 3, 0, HOST_RATE)
    assert table.evenness(np.arange(3)) == pytest.approx(ratio)


def test_a_link_between_nodes_carries_more_than_one_worker_moves():
    """Its bucket is no later for that than a link of the workers' own rate."""
    for rate_mbit, rate in ((None, np.inf), (10**12, 1.25e17 / WIRE_PER_PAYLOAD)):
        nodes = {"size": 2, "between": {"rate_mbit": rate_mbit}}
        table = LinkTable(NetworkCondition(nodes=nodes), 4, 0, HOST_RATE)
        assert table.rates.tolist() == pytest.approx([HOST_RATE] * 8 + [rate] * 4)
        assert table.buckets_s.tolist() == [0] * 12


def test_a_path_inside_a_node_crosses_no_link_between_nodes():
    table = LinkTable(CONDITIONS[3], 4, 0, HOST_RATE)
    crossed = table.crossed(np.array([0, 0]), np.array([1, 2]))
    assert set(crossed[:, 0]) == {0, 4 + 1}
    assert set(crossed[:, 1]) == {0, 8 + 0, 10 + 1, 4 + 2}


def test_a_schedule_tells_until_when_its_links_hold():
    condition = NetworkCondition(rate_mbit=8, schedule=[{"at_s": 3, "rate_mbit": 4}])
    schedule = LinkSchedule(condition, 2, HOST_RATE)
    found = [
        (table.rates[0] * WIRE_PER_PAYLOAD, until) for table, until in map(schedule.at, (0, 3))
    ]
    assert found == [(pytest.approx(1e6), 3), (pytest.approx(5e5), np.inf)]


def test_a_trace_that_repeats_is_made_into_tables_once():
    schedule = LinkSchedule(NetworkCondition(trace="cellular.csv"), 2, HOST_RATE)
    assert schedule.at(5.5)[0] is schedule.at(125.5)[0]
    assert schedule.at(5.5)[0] is not schedule.at(6.5)[0]


def test_workers_of_their_own_are_those_with_overrides_or_faults():
    condition = NetworkCondition(
        workers={3: {"rate_mbit": 1}}, faults=[{"workers": [0, 2], "at_s": 1, "for_s": 1}]
    )
    assert named_ranks(condition) == [0, 2, 3]


def test_refuses_a_worker_that_is_not_there():
    with pytest.raises(ValueError, match="workers names the rank 1, and 1 workers have the ranks"):
        LinkSchedule(CONDITIONS[2], 1, HOST_RATE)


def test_the_queue_of_a_path_is_that_of_its_slowest_link_or_of_the_first():
    """A queue before a link that is faster than the link before it never fills. A token bucket lets
    so much pass at once; of the rest a slower link has the part that comes sooner than it leaves.
    """
    condition = NetworkCondition(
        rate_mbit=100,
        queue_ms=8,
        down={"queue_ms": 4},
        workers={
            1: {"down": {"rate_mbit": 10}},
            2: {"down": {"rate_mbit": 1000, "queue_ms": 0.001}},
            3: {"up": {"rate_mbit": None}},
        },
    )
    table = LinkTable(condition, 5, 0, 1e12)
    pairs = [(0, 4), (0, 1), (0, 2), (3, 4), (3, 2)]
    paths = table.paths(*np.array(pairs).T)
    wire_bytes = [0.004 * 12.5e6, 0.004 * 1.25e6, 0.008 * 12.5e6, 0.004 * 12.5e6, 0.000_001 * 125e6]
    assert paths.queue_bytes * WIRE_PER_PAYLOAD == pytest.approx(np.array(wire_bytes))
    assert paths.burst_bytes * WIRE_PER_PAYLOAD == pytest.approx(70_000)
    assert paths.excess == pytest.approx([0, 0.9, 0, 1, 1], abs=1e-3)
    assert paths.excess[[0, 2]].tolist() == [0, 0]
    unshaped = LinkTable(NetworkCondition(queue_ms=0), 2, 0, 1e9).paths(*np.array([(0, 1)]).T)
    assert np.isinf(unshaped.queue_bytes).all()


@pytest.mark.parametrize("condition", CONDITIONS)
def test_no_path_has_a_shorter_queue_or_a_larger_burst_than_the_worst(condition):
    table = LinkTable(condition, 5, 0, HOST_RATE)
    pairs = np.array(list(permutations(range(5), 2)))
    paths, worst = table.paths(pairs[:, 0], pairs[:, 1]), table.worst_path(np.arange(5))
    assert (worst.queue_bytes <= paths.queue_bytes).all()
    assert (worst.burst_bytes >= paths.burst_bytes).all()
    assert (worst.excess >= paths.excess).all()


def test_a_bucket_holds_four_milliseconds_of_a_fast_link():
    table = LinkTable(NetworkCondition(rate_mbit=1000), 2, 0, 1e12)
    paths = table.paths(np.array([0]), np.array([1]))
    assert paths.burst_bytes * WIRE_PER_PAYLOAD == pytest.approx([500_000])
    assert table.worst_path(np.arange(2)).burst_bytes == paths.burst_bytes


def test_the_worst_path_has_the_worst_of_each_of_its_links():
    condition = NetworkCondition(
        rate_mbit=100,
        delay_ms=1,
        jitter_ms=0.5,
        nodes={"size": 2, "between": {"rate_mbit": 1000, "delay_ms": 20, "jitter_ms": 3}},
        workers={
            1: {"up": {"delay_ms": 7, "jitter_ms": 2, "rate_mbit": 1000}},
            2: {"down": {"delay_ms": 4, "jitter_ms": 1.5}},
        },
    )
    table = LinkTable(condition, 4, 0, 1e12)
    far, near = table.worst_path(np.arange(4)), table.worst_path(np.arange(2))
    assert (float(far.delay_s), float(near.delay_s)) == pytest.approx((0.007 + 0.024, 0.007))
    assert (float(far.jitter_s), float(near.jitter_s)) == pytest.approx((0.0065, 0.002))
    for worst in (far, near):  # slower than the fastest of the first links
        assert worst.excess == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("fast", "kilobytes", "excess"), [({}, 500, 0), ({0: {"rate_mbit": 2000}}, 1000, 0.5)]
)
def test_the_largest_bucket_and_the_fastest_of_the_first_links_count(fast, kilobytes, excess):
    slow_down = {1: {"down": {"rate_mbit": 1000}}} | {rank: {"up": it} for rank, it in fast.items()}
    table = LinkTable(NetworkCondition(rate_mbit=1000, workers=slow_down), 3, 0, 1e12)
    worst = table.worst_path(np.arange(3))
    assert float(worst.burst_bytes) * WIRE_PER_PAYLOAD == pytest.approx(1000 * kilobytes)
    assert worst.excess == pytest.approx(excess)


def test_a_bucket_lets_its_bytes_through_as_fast_as_the_host():
    """500 kB take 4 ms at 1 Gbit/s, and 2 of a host that moves twice as much."""
    wire = 125e6 / WIRE_PER_PAYLOAD
    table = LinkTable(NetworkCondition(rate_mbit=1000), 2, 0, 2 * wire)
    assert table.buckets_s[:4] == pytest.approx([0.002] * 4)


def test_of_links_that_are_as_fast_as_their_hosts_the_largest_bucket_counts():
    workers = {1: {"up": {"rate_mbit": 2000}}}
    table = LinkTable(NetworkCondition(rate_mbit=1000, workers=workers), 3, 0, 1e7)
    worst = table.worst_path(np.arange(3))
    assert float(worst.burst_bytes) * WIRE_PER_PAYLOAD == pytest.approx(1e6)


def test_workers_whose_links_differ_are_named_in_order():
    workers = {rank: {"rate_mbit": 1} for rank in (8, 1)}
    condition = NetworkCondition(workers=workers, faults=[{"worker": 4, "at_s": 0, "for_s": 1}])
    assert named_ranks(condition) == [1, 4, 8]


def test_what_the_first_link_sends_on_is_too_much_where_a_link_behind_it_is_slower():
    nodes = {"size": 2, "between": {"rate_mbit": 4000}}
    condition = NetworkCondition(rate_mbit=1000, nodes=nodes, workers={3: {"rate_mbit": 500}})
    table = LinkTable(condition, 4, 0, 1e12)
    paths = table.paths(np.array([0, 0, 0]), np.array([1, 2, 3]))
    assert paths.burst_bytes * WIRE_PER_PAYLOAD == pytest.approx(500_000)
    assert paths.excess == pytest.approx([0, 0, 0.5])
