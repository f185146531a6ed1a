import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bagua_algos.communication.stripes import SMALLEST_PART_BYTES
from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import wire_per_payload
from netsim.links.tcp import UNSENT_BYTES
from netsim.timeline.cost import Cost
from netsim.timeline.cost_model import CostModel
from netsim.timeline.tcp.throughput import LINUX_WINDOW_BYTES, message_s
from netsim.timeline.tcp.windows import Window
from netsim.timeline.transport import GLOO, NCCL, Transport
from netsim.validation import gloo_measurements
from netsim.validation.calibrate import error, predicted_s
from netsim.validation.ring import seconds_in_theory
from tests.netsim.operations import Operation, of_all
from tests.paths import ROOT

WIRE_PER_PAYLOAD = wire_per_payload()
COLLECTIVES = ("all_reduce_mean", "all_to_all", "reduce_scatter_mean", "all_gather", "broadcast")
IDEAL = Transport(
    operation_s=0,
    message_s=0,
    bytes_per_s=1e30,
    messages_per_s=1e30,
    local_messages_per_s=1e30,
    switch_messages_per_s=1e30,
    switch_nap_s=0,
    num_segments=1,
    rendezvous=False,
    straggling_bytes=0,
    segment_bytes=1e30,
    max_window_bytes=1e30,
)
FAR = NetworkCondition(rate_mbit=10_000, delay_ms=50)
OPEN = 1e12  # a congestion window that never waits


def cost_of(
    operation: Operation,
    condition: NetworkCondition,
    num_workers: int,
    transport: Transport = IDEAL,
    window_bytes: float = OPEN,
) -> Cost:
    model = CostModel(condition, num_workers, transport)
    return model.cost(operation, model.at(0)[0], (Window(window_bytes),))


def seconds_of(*arguments, **keywords) -> float:
    return float(np.max(cost_of(*arguments, **keywords).seconds))


# What 4 gloo workers took in namespaces: made by `python -m netsim calibrate`.
MEASURED = gloo_measurements.read(ROOT / "results" / "validation" / "gloo.csv")


@pytest.mark.parametrize(
    ("rate_mbit", "delay_ms", "limit"),
    [(1000, 1, 0.25), (100, 1, 0.1), (200, 5, 0.1), (50, 10, 0.1)],
)
def test_gloo_took_about_as_long_in_most_cases(rate_mbit, delay_ms, limit):
    rows = [m for m in MEASURED if (m.rate_mbit, m.delay_ms) == (rate_mbit, delay_ms)]
    assert len(rows) == 21
    assert np.median([abs(error(row, GLOO)) for row in rows]) < limit


def test_a_sender_is_done_when_it_has_handed_over_what_tcp_takes():
    assert GLOO.socket_bytes == UNSENT_BYTES


@pytest.mark.parametrize("name", ["all_reduce_mean", "all_gather", "exchange"])
def test_gloo_took_as_long_where_the_bandwidth_counts(name):
    rows = [
        m
        for m in MEASURED
        if m.name == name and m.rate_mbit and m.rate_mbit <= 200 and m.num_bytes >= 2_500_000
    ]
    assert len(rows) == 4
    for row in rows:
        assert predicted_s(row, GLOO) == pytest.approx(row.seconds, rel=0.06)


def test_workers_of_one_host_together_move_no_more_than_it_can():
    transport = replace(IDEAL, local_bytes_per_s=1e9, switch_bytes_per_s=1e8)
    operation = of_all("exchange", 1_000_000, 4, shift=1)
    for backend, seconds in (("switch", 0.04), ("tbf", 0.004), ("netem", 0.004)):
        model = CostModel(NetworkCondition(), 4, transport, backend=backend)
        cost = model.cost(operation, model.at(0)[0])
        assert cost.seconds == pytest.approx([seconds] * 4)
    assert seconds_of(operation, NetworkCondition(), 4, transport) < 1e-6  # each has its own host


def test_messages_of_few_bytes_go_out_one_after_the_other():
    """As `results/validation/gloo.csv` has it for up to 32 workers. An exchange has one."""
    unshaped = NetworkCondition()
    for num_workers in (4, 128):
        operation = of_all("all_to_all", 4 * num_workers, num_workers)
        last_begins_s = (num_workers - 2) / GLOO.messages_per_s
        expected_s = last_begins_s + 2 * GLOO.message_s + GLOO.operation_s
        assert seconds_of(operation, unshaped, num_workers, GLOO) == pytest.approx(expected_s)
    times_s = {seconds_of(of_all("exchange", 4, n, shift=1), unshaped, n, GLOO) for n in (4, 128)}
    assert len(times_s) == 1
    striped = replace(IDEAL, streams=2, smallest_part_bytes=1, messages_per_s=1000)
    assert seconds_of(of_all("all_to_all", 8, 4), unshaped, 4, striped) == pytest.approx(0.005)


@pytest.mark.parametrize(
    ("name", "num_messages"),
    [
        ("all_reduce_mean", 2 * 7 * 8 * 2),  # 14 hops of 8 workers, two segments each
        ("all_to_all", 8 * 7),
        ("reduce_scatter_mean", 8 * 7),
        ("all_gather", 7 * 8 * 2),
        ("broadcast", 7),
        ("exchange", 8),
    ],
)
def test_a_host_that_workers_share_handles_their_messages(name, num_messages):
    operation = of_all(name, 80, 8, shift=1 if name == "exchange" else None)
    transport = replace(IDEAL, num_segments=2, local_messages_per_s=1000, local_bytes_per_s=1e6)
    model = CostModel(NetworkCondition(), 8, transport, backend="netem")
    cost = model.cost(operation, model.at(0)[0])
    expected_s = num_messages / 1000 + cost.sent_bytes.sum() / 1e6
    assert cost.seconds == pytest.approx(expected_s)
    assert cost.host_s == pytest.approx(expected_s)
    assert seconds_of(operation, NetworkCondition(), 8, transport) < 1e-6  # each has its own host


def test_more_streams_and_longer_chains_have_more_messages():
    striped = replace(IDEAL, streams=2, smallest_part_bytes=1)
    chunked = replace(IDEAL, chunk_bytes=30)
    one_number = of_all("all_reduce_mean", 4, 4)
    for operation, transport, num_messages in (
        (of_all("exchange", 80, 4, shift=1), striped, 8),
        (of_all("all_to_all", 80, 4), striped, 24),
        (of_all("all_gather", 80, 4), striped, 24),
        (of_all("broadcast", 80, 4), striped, 6),
        (of_all("broadcast", 80, 4), chunked, 9),
        (one_number, striped, 6),
    ):
        assert cost_of(operation, NetworkCondition(), 4, transport).num_messages == num_messages


@pytest.mark.parametrize("num_workers", [2, 3, 4, 8])
def test_an_ideal_ring_takes_what_theory_says(num_workers):
    condition = NetworkCondition(rate_mbit=100, delay_ms=5)
    theory_s = seconds_in_theory(condition.path(0, 1), num_workers, 10_000_000)
    operation = of_all("all_reduce_mean", 10_000_000, num_workers)
    assert seconds_of(operation, condition, num_workers) == pytest.approx(theory_s)


def test_an_all_to_all_takes_the_most_loaded_link_and_one_delay():
    condition = NetworkCondition(rate_mbit=100, delay_ms=5)
    expected_s = 3 * 250_000 * WIRE_PER_PAYLOAD * 8e-8 + 0.005
    for name in ("all_to_all", "reduce_scatter_mean"):
        assert seconds_of(of_all(name, 1_000_000, 4), condition, 4) == pytest.approx(expected_s)


@pytest.mark.parametrize(
    ("num_workers", "message_bytes", "late_bytes"),
    [(2, 250_000, 0), (4, 250_000, 100_000), (4, 30_000, 30_000)],
)
def test_the_last_of_several_flows_is_late_by_what_it_still_has(
    num_workers, message_bytes, late_bytes
):
    condition = NetworkCondition(rate_mbit=100, delay_ms=5)
    operation = of_all("all_to_all", message_bytes * num_workers, num_workers)
    seconds = seconds_of(operation, condition, num_workers, replace(IDEAL, straggling_bytes=1e5))
    byte_s = WIRE_PER_PAYLOAD * 8e-8
    expected_s = ((num_workers - 1) * message_bytes + late_bytes) * byte_s + 0.005
    assert seconds == pytest.approx(expected_s, abs=1e-9)


@pytest.mark.parametrize(
    ("workers", "late_mbit"),
    [
        ({0: {"rate_mbit": 10}}, 100),
        ({2: {"down": {"rate_mbit": 10}}}, 100),
        ({0: {"up": {"rate_mbit": 10}}, 1: {"down": {"rate_mbit": 40}}}, 40),
        ({0: {"up": {"rate_mbit": 10}}, 1: {"down": {"rate_mbit": 10}}}, 10),
    ],
)
def test_the_last_flow_of_a_slow_link_waits_for_the_other_end_alone(workers, late_mbit):
    condition = NetworkCondition(rate_mbit=100, delay_ms=5, workers=workers)
    operation = of_all("all_to_all", 4 * 250_000, 4)
    seconds = seconds_of(operation, condition, 4, replace(IDEAL, straggling_bytes=1e5))
    byte_s = WIRE_PER_PAYLOAD * 8e-7
    expected_s = (3 * 250_000 + 100_000 * 10 / late_mbit) * byte_s + 0.005
    assert seconds == pytest.approx(expected_s, abs=1e-9)


def test_in_an_exchange_only_the_neighbours_of_a_slow_worker_are_slow():
    condition = NetworkCondition(rate_mbit=100, workers={1: {"rate_mbit": 10}})
    cost = cost_of(of_all("exchange", 100_000, 4, shift=1), condition, 4)
    message_s = 100_000 * WIRE_PER_PAYLOAD * 8e-8
    assert cost.seconds == pytest.approx(message_s * np.array([1, 10, 10, 1]))


def test_messages_that_leave_a_node_share_its_link():
    condition = NetworkCondition(nodes={"size": 2, "between": {"rate_mbit": 100}})
    message_s = 100_000 * WIRE_PER_PAYLOAD * 8e-8
    across = cost_of(of_all("exchange", 100_000, 4, shift=2), condition, 4)
    around = cost_of(of_all("exchange", 100_000, 4, shift=1), condition, 4)
    assert across.seconds == pytest.approx([2 * message_s] * 4)
    assert around.seconds == pytest.approx([message_s, 0, message_s, 0])
    everyone = seconds_of(of_all("all_to_all", 400_000, 4), condition, 4)
    assert everyone == pytest.approx(4 * message_s)


def test_an_operation_inside_a_node_does_not_cross_the_link_between_nodes():
    condition = NetworkCondition(rate_mbit=1000, nodes={"size": 2, "between": {"rate_mbit": 1}})
    inside = Operation(name="all_reduce_mean", num_bytes=1_000_000, ranks=(2, 3))
    leaders = Operation(name="all_reduce_mean", num_bytes=1_000_000, ranks=(0, 2))
    ratio = seconds_of(leaders, condition, 4) / seconds_of(inside, condition, 4)
    assert ratio == pytest.approx(1000)
    assert cost_of(inside, condition, 4).sent_bytes.tolist() == [0, 0, 1e6, 1e6]


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("all_reduce_mean", [1.5e6] * 4),
        ("all_to_all", [0.75e6] * 4),
        ("reduce_scatter_mean", [0.75e6] * 4),
        ("all_gather", [3e6] * 4),
        ("broadcast", [2e6, 1e6, 0, 0]),
        ("exchange", [1e6] * 4),
    ],
)
def test_what_each_worker_sends(name, sent):
    operation = of_all(name, 1_000_000, 4, shift=1 if name == "exchange" else None)
    assert cost_of(operation, NetworkCondition(), 4).sent_bytes == pytest.approx(sent)


@pytest.mark.parametrize("name", [*COLLECTIVES, "exchange"])
def test_links_are_occupied_by_what_is_sent(name):
    operation = of_all(name, 1_000_000, 4, shift=1 if name == "exchange" else None)
    cost = cost_of(operation, NetworkCondition(rate_mbit=100), 4)
    sent_s = cost.sent_bytes * WIRE_PER_PAYLOAD * 8e-8
    assert cost.busy_s[:4] == pytest.approx(sent_s)
    assert cost.busy_s[4:8].sum() == pytest.approx(sent_s.sum())


@pytest.mark.parametrize("transport", [GLOO, NCCL, IDEAL])
@pytest.mark.parametrize("name", [*COLLECTIVES, "exchange"])
@given(
    num_bytes=st.integers(1, 10**8),
    rate_mbit=st.floats(1, 1e5),
    delay_ms=st.floats(0, 100),
    loss_pct=st.floats(0, 5),
    factor=st.floats(1, 10),
)
def test_more_bytes_more_delay_more_loss_or_less_rate_is_never_faster(
    name, transport, num_bytes, rate_mbit, delay_ms, loss_pct, factor
):
    condition = NetworkCondition(rate_mbit=rate_mbit, delay_ms=delay_ms, loss_pct=loss_pct)
    shift = 1 if name == "exchange" else None

    def seconds(num_bytes: int = num_bytes, **overrides: float) -> float:
        changed = replace(condition, **overrides)
        return seconds_of(of_all(name, num_bytes, 3, shift), changed, 3, transport)

    best = seconds() * (1 - 1e-9)
    assert seconds(num_bytes=math.ceil(num_bytes * factor)) >= best
    assert seconds(delay_ms=delay_ms * factor) >= best
    assert seconds(loss_pct=loss_pct * factor) >= best
    assert seconds(rate_mbit=max(rate_mbit / factor, 1)) >= best


def test_a_cold_connection_waits_for_its_window_to_open():
    condition = NetworkCondition(rate_mbit=100, delay_ms=10)
    operation = of_all("exchange", 40_000, 4, shift=1)
    cold, warm = (cost_of(operation, condition, 4, window_bytes=w) for w in (14_480, OPEN))
    # 10 segments, a round trip later the other 18: measured 44.4 ms cold and 24.6 warm.
    assert np.max(cold.seconds) - np.max(warm.seconds) == pytest.approx(0.0188, abs=0.0002)


def test_an_all_reduce_over_a_far_link_takes_the_round_trips_of_its_windows():
    """Each of 6 pieces of 138.25 MB needs 43 windows of 3 MiB after its first: 4.3 s."""
    transport = replace(IDEAL, max_window_bytes=3 << 20)
    operation = of_all("all_reduce_mean", 553_000_000, 4)
    last_bytes = 138_250_000 - 43 * (3 << 20)
    piece_s = 43 * 0.1 + last_bytes * WIRE_PER_PAYLOAD * 8e-10
    expected_s = 6 * (piece_s + 0.05)
    assert seconds_of(operation, FAR, 4, transport) == pytest.approx(expected_s)
    for of_library in (GLOO, NCCL):
        assert seconds_of(operation, FAR, 4, of_library) > 10


@pytest.mark.parametrize(
    ("buffers", "window_bytes"),
    [
        ({"tcp_wmem_max_kb": 1500}, 1_000_000),
        ({"tcp_rmem_max_kb": 1500}, 750_000),
        ({"tcp_wmem_max_kb": 1e6}, 3 << 20),  # the receiver's own 6 MiB
        ({"tcp_wmem_max_kb": 1e6, "tcp_rmem_max_kb": 1e6}, 2e9 / 3),
    ],
)
def test_buffers_of_a_network_bound_its_windows(buffers, window_bytes):
    """100 windows need 99 round trips of 100 ms and one delay, but what is left of the bytes."""
    window_bytes = min(window_bytes, 500_000_000)
    num_bytes = 100 * window_bytes
    condition = replace(FAR, **buffers)
    expected_s = 99 * 0.1 + window_bytes * WIRE_PER_PAYLOAD * 8e-10 + 0.05
    if window_bytes * WIRE_PER_PAYLOAD * 8e-10 > 0.1:  # the link is full
        expected_s = num_bytes * WIRE_PER_PAYLOAD * 8e-10 + 0.05
    cost = cost_of(of_all("exchange", num_bytes, 2, shift=1), condition, 2, IDEAL)
    assert cost.seconds == pytest.approx([expected_s] * 2)
    assert NCCL.over(condition).max_window_bytes == min(window_bytes, 4 << 20)


def test_a_network_says_whether_pauses_close_windows():
    assert [
        GLOO.over(replace(FAR, tcp_slow_start_after_idle=said)).slow_start_after_idle
        for said in (None, True, False)
    ] == [True, True, False]


@pytest.mark.parametrize("name", ["all_reduce_mean", "all_to_all", "all_gather", "broadcast"])
def test_no_operation_is_faster_than_its_windows(name):
    """A worker that sends to one other at a time, and has one stream, sends a window in 100 ms; in
    an all-to-all it sends to three.
    """
    num_bytes = 400_000_000
    cost = cost_of(of_all(name, num_bytes, 4), FAR, 4, GLOO)
    num_receivers = {"all_to_all": 3, "broadcast": 2}.get(name, 1)
    in_a_row = cost.sent_bytes.max() / num_receivers / LINUX_WINDOW_BYTES
    assert np.max(cost.seconds) > 0.1 * (in_a_row - 6)  # the first window of 6 pieces at once


def test_streams_carry_a_window_each():
    """100 windows of 3 MiB take 99 round trips by one stream, and 24 by four with 25 each; the
    last window leaves at the link's rate, shared by the streams, and needs one delay.
    """
    num_bytes = 100 * (3 << 20)
    transport = replace(IDEAL, max_window_bytes=3 << 20)
    for streams, num_waits in ((1, 99), (4, 24)):
        striped = replace(transport, streams=streams)
        expected_s = num_waits * 0.1 + streams * (3 << 20) * WIRE_PER_PAYLOAD * 8e-10 + 0.05
        cost = cost_of(of_all("exchange", num_bytes, 2, shift=1), FAR, 2, striped)
        assert cost.seconds == pytest.approx([expected_s] * 2)


def test_under_loss_each_of_several_streams_has_a_window():
    condition = NetworkCondition(rate_mbit=100, delay_ms=25, loss_pct=0.1)
    operation = of_all("exchange", 10_000_000, 2, shift=1)
    one_s, four_s, many_s = (
        seconds_of(operation, condition, 2, replace(IDEAL, streams=k)) for k in (1, 4, 64)
    )
    assert one_s / 4 < four_s < one_s / 2  # the unluckiest of more streams counts
    assert many_s > 10_000_000 * WIRE_PER_PAYLOAD * 8e-8
    expected_s = message_s("cubic", 2_500_000, 12.5e6 / WIRE_PER_PAYLOAD, 0.05, 0.001, 4, 8)
    assert four_s == pytest.approx(expected_s + 0.025, rel=0.02)  # and repairs of what is last


STRIPED_MS = {
    (1, 5, 10_000_000): {1: 11_159, 2: 5924, 4: 3561, 8: 2234, 16: 1696},
    (1, 5, 1_600_000): {1: 2010, 2: 1130, 4: 779, 8: 506, 16: 449},
    (0.1, 25, 1_600_000): {1: 2481, 2: 1470, 4: 848, 8: 556, 16: 517},
}
"""All-reduces of 4 gloo workers over process groups, by loss in per cent, delay in ms and bytes:
medians of 7, by the number of streams.
"""


def test_striped_all_reduces_of_gloo_took_about_as_long_under_loss():
    """Nothing was fitted to them."""
    errors = []
    for (loss_pct, delay_ms, num_bytes), measured_ms in STRIPED_MS.items():
        condition = NetworkCondition(rate_mbit=100, delay_ms=delay_ms, loss_pct=loss_pct)
        operation = of_all("all_reduce_mean", num_bytes, 4)
        for streams, ms in measured_ms.items():
            model = CostModel(condition, 4, replace(GLOO, streams=streams), backend="switch")
            cost = model.cost(operation, model.at(0)[0])
            errors.append(abs(1000 * float(np.max(cost.seconds)) / ms - 1))
    assert np.mean(errors) < 0.1
    assert max(errors) < 0.2


def test_less_than_a_stripe_goes_by_fewer_streams():
    assert GLOO.smallest_part_bytes == SMALLEST_PART_BYTES
    striped = replace(GLOO, streams=4)
    assert [striped.parts(n) for n in (0, 4, 32_767, 32_768, 65_535, 10**9)] == [1, 1, 1, 2, 3, 4]


def test_a_striped_cold_connection_has_a_window_on_each_stream():
    """42 kB by one stream wait for a round trip; by two 21 kB streams for a shorter one; four
    streams hold all of it at once.
    """
    condition = NetworkCondition(rate_mbit=100, delay_ms=10)
    operation = of_all("exchange", 42_000, 4, shift=1)
    sent_s = 14_480 * WIRE_PER_PAYLOAD * 8e-8
    for streams, waited_s in ((1, 0.02 - sent_s), (2, 0.02 - 2 * sent_s), (4, 0)):
        striped = replace(IDEAL, streams=streams, smallest_part_bytes=1000)
        cold, warm = (
            np.max(cost_of(operation, condition, 4, striped, window).seconds)
            for window in (14_480, OPEN)
        )
        assert cold - warm == pytest.approx(waited_s)


def test_jitter_costs_a_long_message_all_of_it_and_a_single_packet_nothing():
    calm = NetworkCondition(rate_mbit=100, delay_ms=10)
    jittery = replace(calm, jitter_ms=4)
    for num_bytes, late_s in ((100, 0), (10_000_000, 0.004)):
        operation = of_all("exchange", num_bytes, 2, shift=1)
        late = seconds_of(operation, jittery, 2) - seconds_of(operation, calm, 2)
        assert late == pytest.approx(late_s, abs=1e-5)


def test_a_tree_is_taken_where_it_is_faster():
    condition = NetworkCondition(rate_mbit=10_000, delay_ms=0.1)
    one, small, large = (of_all("all_reduce_mean", n, 64) for n in (4, 10_000, 100_000_000))
    ringed = replace(NCCL, has_trees=False)
    for few in (one, small):
        assert seconds_of(few, condition, 64, NCCL) < seconds_of(few, condition, 64, ringed) / 5
    assert seconds_of(large, condition, 64, NCCL) == seconds_of(large, condition, 64, ringed)


@pytest.mark.parametrize("options", [{}, {"halving_doubling_bytes": 1e9}, {"rendezvous": True}])
def test_a_link_that_is_down_never_ends_an_operation(options):
    condition = NetworkCondition(faults=[{"worker": 1, "at_s": 0, "for_s": 9}])
    for name, num_bytes in [*((name, 1000) for name in COLLECTIVES), ("all_reduce_mean", 4)]:
        for num_workers in (2, 5):
            operation = of_all(name, num_bytes, num_workers)
            seconds = seconds_of(operation, condition, num_workers, replace(IDEAL, **options))
            assert seconds == math.inf
    exchange = cost_of(of_all("exchange", 1000, 4, shift=1), condition, 4)
    assert np.isinf(exchange.seconds).tolist() == [False, True, True, False]


@pytest.mark.parametrize("name", [*COLLECTIVES, "exchange"])
@pytest.mark.parametrize("options", [{}, {"halving_doubling_bytes": 1e9}, {"chunk_bytes": 100}])
def test_every_operation_is_started_and_ended_once(name, options):
    operation = of_all(name, 1000, 4, shift=1 if name == "exchange" else None)
    at_once, later = (
        seconds_of(operation, NetworkCondition(), 4, replace(IDEAL, operation_s=s, **options))
        for s in (0, 0.5)
    )
    assert later - at_once == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("name", "shift", "shape"), [("all_reduce_mean", None, ()), ("exchange", 0, (1,))]
)
def test_one_worker_alone_has_nothing_to_wait_for(name, shift, shape):
    operation = of_all(name, 1000, 1, shift)
    cost = cost_of(operation, NetworkCondition(rate_mbit=1), 1, GLOO)
    assert np.shape(cost.seconds) == np.shape(cost.drain_s) == shape
    for name in ("seconds", "drain_s", "notice_s", "handover_s", "num_messages", "host_s", "rtt_s"):
        assert getattr(cost, name) == 0, name
    assert (cost.busy_s.sum(), cost.sent_bytes.sum(), cost.windows) == (0, 0, ())


def test_refuses_an_operation_of_no_cost():
    with pytest.raises(ValueError, match="no cost of an operation 'gossip': choose one of all_red"):
        cost_of(of_all("gossip", 1, 2), NetworkCondition(), 2)


@pytest.mark.parametrize("values", [{"seconds": np.nan}, {"idle_s": (1.0, np.nan)}])
def test_refuses_a_cost_that_is_no_number(values, monkeypatch):
    operation = of_all("broadcast", 1000, 2)
    known = cost_of(operation, FAR, 2)
    broken = {"broadcast": lambda situation, num_bytes: replace(known, **values)}
    monkeypatch.setattr("netsim.timeline.cost_model._COLLECTIVES", broken)
    with pytest.raises(AssertionError, match="broadcast costs NaN"):
        cost_of(operation, FAR, 2)


def test_routes_that_many_exchanges_take_are_forgotten(monkeypatch):
    monkeypatch.setattr("netsim.timeline.cost_model._MAX_COSTS", 2)
    model = CostModel(NetworkCondition(rate_mbit=100), 5)
    first = model.route(of_all("exchange", 1, 5, shift=1))
    assert model.route(of_all("exchange", 9, 5, shift=1)) is first
    for shift in (2, 3):
        model.route(of_all("exchange", 1, 5, shift=shift))
    again = model.route(of_all("exchange", 1, 5, shift=1))
    assert again is not first
    assert again.senders.tolist() == [4, 0, 1, 2, 3]


def test_a_route_has_the_links_between_nodes_if_a_message_leaves_one():
    condition = NetworkCondition(rate_mbit=100, nodes={"size": 2, "between": {"rate_mbit": 50}})
    model = CostModel(condition, 4)
    inside = replace(of_all("exchange", 1, 4), peers=(1, 0, 3, 2))
    assert model.route(inside).crossed.tolist() == [[1, 0, 3, 2], [4, 5, 6, 7]]
    assert model.route(of_all("exchange", 1, 4, shift=1)).crossed.tolist() == [
        [3, 0, 1, 2],
        [9, 0, 8, 2],
        [10, 5, 11, 7],
        [4, 5, 6, 7],
    ]


@pytest.mark.parametrize(
    ("name", "num_bytes", "num_messages"),
    [("all_to_all", 4 * 200, 24), ("all_to_all", 4 * 199, 12), ("reduce_scatter_mean", 800, 24)],
)
def test_of_an_all_to_all_what_goes_to_one_worker_is_striped(name, num_bytes, num_messages):
    striped = replace(IDEAL, streams=2, smallest_part_bytes=100)
    condition = NetworkCondition(rate_mbit=100)
    assert cost_of(of_all(name, num_bytes, 4), condition, 4, striped).num_messages == num_messages
