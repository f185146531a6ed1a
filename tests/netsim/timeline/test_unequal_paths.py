"""Every operation over paths that differ: which of them counts, and what is added up."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import wire_per_payload
from netsim.timeline import patterns
from netsim.timeline.cost import Cost
from netsim.timeline.cost_model import CostModel
from netsim.timeline.tcp import throughput as tcp
from netsim.timeline.tcp.windows import Window, opening_wait_s
from netsim.timeline.transport import GLOO, NCCL, SharedHost, Transport
from tests.netsim.operations import Operation, of_all
from tests.netsim.timeline.test_cost_model import COLLECTIVES, IDEAL, OPEN, cost_of, seconds_of

WIRE_PER_PAYLOAD = wire_per_payload()
CHAIN = replace(IDEAL, chunk_bytes=1e9)
SMALL = replace(IDEAL, halving_doubling_bytes=1e9)
UNEQUAL = NetworkCondition(
    rate_mbit=100,
    delay_ms=1,
    workers={1: {"up": {"delay_ms": 7}}, 2: {"down": {"delay_ms": 4}}},
)
"""One-way delays, in ms, from i to j: 1, 7 more from worker 1 less its own 1, 4 more to worker 2.

    to      0   1   2   3
    from 0  -   1   5   1
         1  7   -  11   7
         2  1   1   -   1
         3  1   1   5   -
"""

OPERATIONS = [
    # operation, of 4 workers, by a transport: its last delay, and its longest round trip, in ms
    pytest.param(of_all("all_reduce_mean", 40_000, 4), IDEAL, 11, 12, id="ring"),
    pytest.param(of_all("all_reduce_mean", 4, 4), IDEAL, 11, 12, id="one number"),
    pytest.param(of_all("all_reduce_mean", 40_000, 4), SMALL, 11, 8, id="halving"),
    pytest.param(of_all("all_gather", 10_000, 4), IDEAL, 11, 12, id="gather"),
    pytest.param(of_all("all_to_all", 40_000, 4), IDEAL, 11, 22, id="pairs"),
    pytest.param(of_all("broadcast", 40_000, 4), IDEAL, 7, 8, id="tree"),
    pytest.param(of_all("broadcast", 40_000, 4), CHAIN, 11, 12, id="chain"),
    pytest.param(of_all("exchange", 40_000, 4, shift=1), IDEAL, 11, 12, id="exchange"),
]


@pytest.mark.parametrize(("operation", "transport", "drain_ms", "rtt_ms"), OPERATIONS)
def test_the_longest_path_is_the_last_to_drain_and_tells_when_windows_close(
    operation: Operation, transport: Transport, drain_ms: float, rtt_ms: float
):
    cost = cost_of(operation, UNEQUAL, 4, transport)
    assert np.max(cost.drain_s) == pytest.approx(drain_ms / 1000)
    assert cost.rtt_s == pytest.approx(rtt_ms / 1000)


@pytest.mark.parametrize(("operation", "transport", "drain_ms", "rtt_ms"), OPERATIONS)
def test_starting_an_operation_is_added_to_its_time(operation, transport, drain_ms, rtt_ms):
    del drain_ms, rtt_ms
    started = replace(transport, operation_s=0.5)
    seconds = [seconds_of(operation, UNEQUAL, 4, each) for each in (transport, started)]
    assert seconds[1] - seconds[0] == pytest.approx(0.5)


WINDOWED = [OPERATIONS[0], OPERATIONS[3], OPERATIONS[6], OPERATIONS[7]]


@pytest.mark.parametrize(("operation", "transport", "drain_ms", "rtt_ms"), WINDOWED)
def test_windows_open_as_on_the_longest_path(operation, transport, drain_ms, rtt_ms):
    del drain_ms
    even = NetworkCondition(rate_mbit=100, delay_ms=rtt_ms / 2)
    of_unequal, of_even = (
        cost_of(operation, condition, 4, transport, 14_480).windows for condition in (UNEQUAL, even)
    )
    assert of_unequal == of_even
    assert 14_480 < of_even[0].num_bytes < OPEN


@pytest.mark.parametrize(
    ("operation", "transport", "num_paths"),
    [
        (of_all("all_reduce_mean", 4 * 42_000, 4), IDEAL, 1),
        (of_all("all_gather", 42_000, 4), IDEAL, 1),
        (of_all("all_to_all", 4 * 42_000, 4), IDEAL, 1),
        (of_all("broadcast", 42_000, 4), IDEAL, 2),
        (of_all("broadcast", 42_000, 4), CHAIN, 1),
        (of_all("exchange", 42_000, 4, shift=1), IDEAL, 1),
    ],
)
def test_windows_that_open_on_the_longest_path_are_waited_for(operation, transport, num_paths):
    """42 kB of one message in a window of 14.48 kB wait for a round trip, less what this window
    takes on the link; of three messages that share a link, less what all three take.
    """
    far = NetworkCondition(
        rate_mbit=1000, delay_ms=1, workers={0: {"up": {"delay_ms": 30}, "down": {"delay_ms": 20}}}
    )
    cold_s, warm_s = (seconds_of(operation, far, 4, transport, window) for window in (14_480, OPEN))
    window_s = 14_480 * WIRE_PER_PAYLOAD * 8e-9
    match operation.name:
        case "all_to_all":
            waited_s = 2 * 0.05 - 3 * window_s
        case "broadcast":
            # From worker 0, which is 30 ms from all others; its own word comes 21 ms later.
            waited_s = (0.051 - window_s) + (num_paths - 1) * (0.002 - window_s)
        case _:
            waited_s = 0.051 - window_s
    assert cold_s - warm_s == pytest.approx(waited_s, rel=1e-6)


def test_one_number_waits_for_the_latest_word_and_then_for_all_hops_in_turn():
    waiting = replace(IDEAL, rendezvous=True)
    cost = cost_of(of_all("all_reduce_mean", 4, 4), UNEQUAL, 4, waiting)
    assert float(cost.seconds) == pytest.approx(0.007 + 6 * (1 + 11 + 1 + 1) / 4 / 1000)
    assert cost.sent_bytes == pytest.approx([6, 6, 6, 6])
    assert cost.num_messages == 6


def test_one_number_waits_for_a_probe_or_for_the_timeout_where_its_packet_is_lost():
    loss, rtt_s = 0.01, 0.02
    clean = NetworkCondition(rate_mbit=100, delay_ms=10)
    without_s, with_s = (
        seconds_of(of_all("all_reduce_mean", 4, 4), condition, 4)
        for condition in (clean, replace(clean, loss_pct=100 * loss))
    )
    lost_s = loss * 2 * rtt_s + loss**2 * (0.2 + rtt_s - 2 * rtt_s)
    assert with_s - without_s == pytest.approx(6 * lost_s)


@pytest.mark.parametrize("num_bytes", [5, 8])
def test_more_than_one_number_is_cut_for_a_ring(num_bytes):
    cost = cost_of(of_all("all_reduce_mean", num_bytes, 4), UNEQUAL, 4)
    assert cost.sent_bytes == pytest.approx([6 * num_bytes / 4] * 4)
    assert cost.num_messages == 4 * 6


@pytest.mark.parametrize(("num_workers", "num_levels"), [(5, 3), (8, 3), (9, 4)])
def test_a_double_tree_is_gone_through_there_and_back(num_workers, num_levels):
    """So few bytes that a ring takes longer."""
    far = NetworkCondition(rate_mbit=100, delay_ms=10)
    transport = replace(NCCL, message_s=0, operation_s=0.001, streams=1)
    operation = of_all("all_reduce_mean", 10_000, num_workers)
    moving_s = 2 * 10_000 * WIRE_PER_PAYLOAD * 8e-8
    seconds = seconds_of(operation, far, num_workers, transport)
    assert seconds == pytest.approx(2 * num_levels * 0.01 + moving_s + 0.001)


def test_a_double_tree_moves_a_window_a_round_trip():
    far = NetworkCondition(rate_mbit=100, delay_ms=50)
    transport = replace(NCCL, message_s=0, operation_s=0, streams=1, max_window_bytes=1e5)
    seconds = seconds_of(of_all("all_reduce_mean", 1_000_000, 64), far, 64, transport)
    assert seconds == pytest.approx(2 * 6 * 0.05 + 2 * 1_000_000 / (1e5 / 0.1))


def test_a_ring_is_as_late_as_its_hops_are_on_the_mean_and_its_last_on_the_longest_path():
    transport = replace(IDEAL, message_s=0)
    seconds = seconds_of(of_all("all_gather", 4, 4), UNEQUAL, 4, transport)
    around_s = (1 + 11 + 1 + 1) / 4 / 1000
    assert seconds == pytest.approx(2 * around_s + 0.011, rel=1e-3)


def test_messages_are_carried_one_after_the_other_whatever_bytes_take():
    nothing = np.zeros(1)
    cost = Cost(seconds=2.0, drain_s=0.0, busy_s=nothing, sent_bytes=nothing, num_messages=3)
    for has_switch, seconds in ((True, 2.3), (False, 2.0)):
        host = SharedHost(bytes_per_s=1, messages_per_s=10, has_switch=has_switch)
        shared = patterns.share_host(cost, host)
        assert (float(shared.seconds), shared.host_s) == pytest.approx((seconds, 0.3))


def test_what_uses_other_connections_has_another_key_and_nothing_else_has():
    transport = replace(IDEAL, halving_doubling_bytes=1000)
    model = CostModel(NetworkCondition(rate_mbit=100), 4, transport)

    def key(name: str, num_bytes: int, ranks: tuple[int, ...] = (0, 1, 2, 3), shift=None):
        peers = None if shift is None else tuple((rank + shift) % 4 for rank in ranks)
        operation = Operation(name=name, num_bytes=num_bytes, ranks=ranks, peers=peers)
        return model.connections(operation)

    assert key("all_reduce_mean", 1000) == key("all_reduce_mean", 4)
    assert key("all_reduce_mean", 1001) == key("all_reduce_mean", 10**6)
    assert key("all_reduce_mean", 1000) != key("all_reduce_mean", 1001)
    assert key("all_gather", 1000) == key("all_gather", 1001)
    assert key("all_gather", 9) != key("broadcast", 9)
    assert key("all_gather", 9, (0, 1)) != key("all_gather", 9, (2, 3))
    assert key("exchange", 9, shift=1) != key("exchange", 9, shift=3)


def test_a_word_is_a_packet_however_late_the_last_of_a_message_is():
    """Of many packets the latest counts, of a word the mean of one, which is never late here."""
    jittery = NetworkCondition(rate_mbit=1000, delay_ms=10, jitter_ms=6)
    waiting = replace(IDEAL, rendezvous=True)
    at_once_s, waited_s = (
        seconds_of(of_all("exchange", 10**6, 2, shift=1), jittery, 2, each)
        for each in (IDEAL, waiting)
    )
    model = CostModel(jittery, 2, waiting)
    operation = of_all("exchange", 10**6, 2, shift=1)
    cost = model.cost(operation, model.at(0)[0], (Window(OPEN),))
    assert waited_s == pytest.approx(at_once_s)
    assert cost.notice_s == pytest.approx([0.01, 0.01])


@pytest.mark.parametrize(("num_workers", "lasts"), [(2, 0), (3, 1), (4, 1)])
def test_the_last_of_several_flows_still_has_to_move_some_bytes(num_workers, lasts):
    even = NetworkCondition(rate_mbit=100)
    operation = of_all("all_to_all", 100_000 * num_workers, num_workers)
    fair_s, late_s = (
        seconds_of(operation, even, num_workers, replace(IDEAL, straggling_bytes=some))
        for some in (0, 30_000)
    )
    assert late_s - fair_s == pytest.approx(lasts * 30_000 * WIRE_PER_PAYLOAD * 8e-8)


def test_halving_and_doubling_swaps_as_late_as_its_latest_pair():
    """Two swaps there and two back, with 7 ms from worker 1 in each."""
    seconds = seconds_of(of_all("all_reduce_mean", 40_000, 4), UNEQUAL, 4, SMALL)
    moving_s = 2 * (20_000 + 10_000) * WIRE_PER_PAYLOAD * 8e-8
    assert seconds == pytest.approx(4 * 0.007 + moving_s)


def test_the_last_swap_drains_with_the_jitter_of_all_its_packets():
    jittery = NetworkCondition(rate_mbit=100, delay_ms=10, jitter_ms=6)
    cost = cost_of(of_all("all_reduce_mean", 4 * 1448, 4), jittery, 4, SMALL)
    assert cost.drain_s == pytest.approx(0.01 + 0.006 * (2 - 1) / (2 + 1))


@pytest.mark.parametrize("streams", [1, 2])
def test_what_swaps_lose_is_waited_for_by_all_parts(streams):
    """Two swaps of two workers, a part of 20 kB on each stream."""
    lossy = NetworkCondition(rate_mbit=100, delay_ms=10, loss_pct=1)
    transport = replace(SMALL, streams=streams, smallest_part_bytes=1)
    swapped = 20_000 * streams
    seconds = seconds_of(of_all("all_reduce_mean", 2 * swapped, 2), lossy, 2, transport)
    rate, rtt_s, loss, parts = 12.5e6 / WIRE_PER_PAYLOAD, 0.02, 0.01, 2 * streams
    moving_s = tcp.message_s(None, 20_000, rate, rtt_s, loss, streams, parts)
    window = float(tcp.loss_limited_rate(None, rate, rtt_s, loss, streams)) / streams * rtt_s
    lost_s = tcp.recovery_wait_s(20_000, window, rtt_s, loss, parts)
    assert seconds == pytest.approx(2 * float(moving_s + lost_s + 0.01))


def test_pairs_wait_for_what_the_latest_of_all_messages_loses():
    """Three flows share a link. Each has 1 MB for another worker, and a window in flight."""
    lossy = NetworkCondition(rate_mbit=100, delay_ms=10, loss_pct=1)
    seconds = seconds_of(of_all("all_to_all", 4_000_000, 4), lossy, 4)
    rate, rtt_s, loss = 12.5e6 / WIRE_PER_PAYLOAD, 0.02, 0.01
    moving_s = tcp.message_s(None, 10**6, rate, rtt_s, loss, 3, 12)
    flow = float(tcp.loss_limited_rate(None, rate, rtt_s, loss, 3)) / 3
    lost_s = tcp.recovery_wait_s(10**6, flow * rtt_s, rtt_s, loss, 12)
    assert seconds == pytest.approx(float(moving_s + lost_s + 0.01))


def test_two_streams_of_a_ring_open_their_windows_side_by_side():
    far = NetworkCondition(rate_mbit=1000, delay_ms=25)
    transport = replace(IDEAL, streams=2)
    rate = 125e6 / WIRE_PER_PAYLOAD / 2
    for part_bytes in (21_000, 4_000_000):  # of more than half of what the link holds
        operation = of_all("all_gather", 2 * part_bytes, 4)
        cold_s, warm_s = (
            seconds_of(operation, far, 4, transport, window) for window in (14_480, OPEN)
        )
        alone_s = opening_wait_s(None, part_bytes, Window(14_480), rate, rate, 0.05)
        assert cold_s - warm_s == pytest.approx(float(alone_s))


@pytest.mark.parametrize("transport", [GLOO, NCCL])
@pytest.mark.parametrize("name", [*COLLECTIVES, "exchange"])
def test_nodes_with_nothing_between_them_cost_nothing(name, transport):
    """Workers of a node share its links, which carry what all of them move."""
    operation = of_all(name, 10**8, 8, 4 if name == "exchange" else None)
    plain_s, noded_s = (
        seconds_of(operation, NetworkCondition(delay_ms=0.1, nodes=nodes), 8, transport)
        for nodes in (None, {"size": 4})
    )
    assert noded_s == plain_s


def test_a_faster_link_between_nodes_is_faster_until_workers_are_the_limit():
    """16 messages cross a node's link at once, and 7 a worker's own, of 34.8 Gbit/s: the former is
    the limit up to 79.5 Gbit/s.
    """
    operation = of_all("all_to_all", 10**8, 8)
    times_s = []
    for rate_mbit in (10_000, 30_000, 60_000, 200_000, 400_000):
        nodes = {"size": 4, "between": {"rate_mbit": rate_mbit}}
        times_s.append(seconds_of(operation, NetworkCondition(nodes=nodes), 8, GLOO))
    assert times_s[0] > times_s[1] > times_s[2] > times_s[3] == times_s[4]


@pytest.mark.parametrize("network", [{"loss_pct": 1, "jitter_ms": 10}, {"loss_pct": 0.1}, {}])
@pytest.mark.parametrize("num_workers", [3, 4, 8])
def test_a_slower_worker_makes_no_all_to_all_faster(network, num_workers):
    """Its last flows wait at the other ends, for rates there or for windows."""
    operation = of_all("all_to_all", 400_000 * num_workers, num_workers)
    fast = NetworkCondition(rate_mbit=1000, delay_ms=10, **network)
    times_s = [
        seconds_of(
            operation, replace(fast, workers={1: {"rate_mbit": rate_mbit}}), num_workers, GLOO
        )
        for rate_mbit in (1000, 999, 500, 200, 50, 10)
    ]
    assert times_s == pytest.approx(sorted(times_s), rel=1e-9)


SLOWER = st.sampled_from([1, 5, 50])
NETWORKS = st.fixed_dictionaries(
    {
        "rate_mbit": st.sampled_from([None, 1, 100, 10_000]),
        "delay_ms": st.sampled_from([0, 1, 200]),
        "loss_pct": st.sampled_from([0, 0.1, 5]),
        "queue_ms": st.sampled_from([4, 400]),
        "up": st.none() | st.fixed_dictionaries({"rate_mbit": SLOWER}),
        "workers": st.none()
        | st.dictionaries(st.integers(0, 1), st.fixed_dictionaries({"rate_mbit": SLOWER})),
        "nodes": st.none()
        | st.fixed_dictionaries(
            {
                "size": st.integers(1, 5),
                "between": st.fixed_dictionaries({"rate_mbit": SLOWER}),
            }
        ),
    }
)
TRANSPORTS = [GLOO, replace(GLOO, streams=8), replace(GLOO, halving_doubling_bytes=1e9), NCCL]


@given(
    network=NETWORKS,
    num_workers=st.integers(2, 16),
    num_bytes=st.sampled_from([4, 1000, 300_000, 10_000_000]),
    transport=st.sampled_from(TRANSPORTS),
    name=st.sampled_from([*COLLECTIVES, "exchange"]),
    shift=st.integers(0, 15),
)
@example({"nodes": {"size": 3, "between": {"rate_mbit": 1}}}, 7, 1_000_000, GLOO, "broadcast", 1)
def test_no_operation_ends_before_its_bytes_are_through_every_link(
    network, num_workers, num_bytes, transport, name, shift
):
    operation = of_all(name, num_bytes, num_workers, shift if name == "exchange" else None)
    cost = cost_of(operation, NetworkCondition(**network), num_workers, transport)
    assert np.max(cost.seconds) >= cost.busy_s.max() * (1 - 1e-9)
