"""Windows that open and close, against connections that go round by round."""

import math
from dataclasses import replace

import numpy as np
import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import wire_per_payload
from netsim.timeline.compute import ComputeTimes
from netsim.timeline.connections import Connections
from netsim.timeline.cost_model import CostModel
from netsim.timeline.tcp.windows import Window, after_idleness, opened, opening_wait_s
from netsim.timeline.timeline import Timeline
from netsim.timeline.transport import GLOO
from tests.netsim.event_oracle import Connection
from tests.netsim.operations import of_all
from tests.netsim.timeline.test_cost_model import IDEAL

RATE = 12.5e6
RTT_S = 0.02
HELD = RATE * RTT_S


def wait_s(num_bytes: float, window: Window, **options) -> float:
    given = {"algorithm": "cubic", "rate": RATE, "link_rate": RATE, "rtt_s": RTT_S} | options
    return float(opening_wait_s(num_bytes=num_bytes, window=window, **given))


@pytest.mark.parametrize("num_bytes", [1, 14_480, 14_481, 40_000, 100_000, 400_000, 10_000_000])
@pytest.mark.parametrize("num_window_bytes", [14_480, 50_000, 150_000, 10_000_000])
@pytest.mark.parametrize("threshold", [math.inf, 60_000, 200_000])
def test_a_message_waits_as_long_as_its_rounds(num_bytes, num_window_bytes, threshold):
    connection = Connection(num_window_bytes, threshold)
    expected_s = connection.send(num_bytes, RATE, RTT_S)
    assert wait_s(num_bytes, Window(num_window_bytes, threshold)) == pytest.approx(expected_s)


@pytest.mark.parametrize("num_bytes", [1, 20_000, 60_000, 130_000, 400_000, 10_000_000])
@pytest.mark.parametrize("threshold", [math.inf, 60_000, 200_000])
def test_messages_open_a_window_as_far_as_round_by_round(num_bytes, threshold):
    connection, window = Connection(14_480, threshold), Window(14_480, threshold)
    for _ in range(30):
        connection.send(num_bytes, RATE, RTT_S)
        window = opened("cubic", num_bytes, window, RATE, RATE, RTT_S)
        assert window.num_bytes == pytest.approx(connection.window, rel=0.06)
        assert window.threshold_bytes == pytest.approx(connection.threshold)
    assert window.num_bytes == pytest.approx(connection.window, rel=0.01)


@pytest.mark.parametrize(("algorithm", "share"), [("cubic", 0.5), (None, 0.5), ("reno", 1)])
def test_only_cubic_ends_the_doubling_at_half_of_what_the_link_holds(algorithm, share):
    window = opened(algorithm, 200_000, Window(14_480), RATE, RATE, RTT_S)
    grown = (200_000 - (HELD / 2 - 14_480)) / 20
    expected = HELD / 2 + grown if share == 0.5 else 14_480 + 200_000
    assert window.num_bytes == pytest.approx(expected)
    assert window.threshold_bytes == (HELD / 2 if share == 0.5 else math.inf)
    waits_s = wait_s(10_000_000, Window(HELD / 2), algorithm=algorithm)
    assert (waits_s > RTT_S) == (share == 0.5)


def test_where_something_else_limits_a_flow_a_window_doubles_until_it_does():
    """Half of what the link holds is never in flight where losses allow a tenth of its rate."""
    lossy = {"rate": RATE / 10, "link_rate": RATE}
    connection = Connection(2_000, math.inf)
    expected_s = connection.send(1_000_000, RATE / 10, RTT_S, link_rate=RATE)
    assert wait_s(1_000_000, Window(2_000), **lossy) == pytest.approx(expected_s)
    window = opened("cubic", 1_000_000, Window(2_000), RATE / 10, RATE, RTT_S)
    assert window == (1.5 * HELD / 10, math.inf)


def test_an_unshaped_link_waits_a_round_trip_for_each_doubling():
    unshaped = {"rate": math.inf, "link_rate": math.inf}
    assert wait_s(40_000, Window(14_480), **unshaped) == pytest.approx(RTT_S)
    assert wait_s(40_000, Window(14_480), **unshaped, rtt_s=0) == 0
    assert wait_s(40_000, Window(14_480), rtt_s=0) == 0


def test_paths_are_as_far_as_each_is():
    rtts_s = np.array([0, 0.001, 0.02, 0.3])
    waits_s = opening_wait_s("cubic", 2e6, Window(14_480), RATE, RATE, rtts_s)
    expected_s = [wait_s(2e6, Window(14_480), rtt_s=rtt_s) for rtt_s in rtts_s]
    assert waits_s == pytest.approx(np.array(expected_s))


def test_a_window_is_halved_for_every_timeout_of_a_pause():
    timeout_s = 0.2 + RTT_S
    windows = [
        after_idleness(Window(64e3, 40e3), n * timeout_s * 1.01, RTT_S) for n in (0, 0.5, 1, 2, 9)
    ]
    assert [window.num_bytes for window in windows] == [64e3, 64e3, 32e3, 16e3, 14_480]
    assert [window.threshold_bytes for window in windows] == [40e3, 40e3, 48e3, 48e3, 48e3]
    assert after_idleness(Window(64e3, 50e3), 1, RTT_S).threshold_bytes == 50e3
    assert after_idleness(Window(64e3), 1, RTT_S).threshold_bytes == math.inf
    assert after_idleness(Window(5e3), 9, RTT_S).num_bytes == 5e3
    assert after_idleness(Window(64e3), 9, RTT_S, 89_480).num_bytes == 64e3


def test_a_window_opens_by_what_is_sent_and_no_further_than_the_link_holds():
    assert opened("reno", 40e3, Window(14_480), RATE, RATE, RTT_S).num_bytes == 54_480
    assert opened("reno", 40e3, Window(60e3), RATE, RATE, RTT_S).num_bytes == 80e3
    assert opened("reno", 10e6, Window(14_480), RATE, RATE, RTT_S).num_bytes == 1.5 * HELD
    assert opened("cubic", 10e6, Window(14_480), RATE, RATE, RTT_S).num_bytes == 1.5 * HELD
    assert opened("cubic", 10, Window(14_480), RATE, RATE, 1e-6).num_bytes == 14_480


FAR = NetworkCondition(rate_mbit=100, delay_ms=25)
FAR_RATE = 12.5e6 / wire_per_payload()


def repeated_s(operation, num_workers: int, transport, condition=FAR, num_times: int = 12):
    timeline = Timeline(
        CostModel(condition, num_workers, transport), ComputeTimes(forward_s=0, backward_s=0)
    )
    ends_s = [0.0]
    for _ in range(num_times):
        timeline.on_operation(operation)
        ends_s.append(float(timeline.time_s.max()))
    return np.diff(ends_s)


@pytest.mark.parametrize("num_workers", [4, 8])
@pytest.mark.parametrize("num_bytes", [400_000, 1_600_000, 10_000_000])
@pytest.mark.parametrize("closes", [True, False])
def test_repeated_halving_and_doubling_goes_as_connection_by_connection(
    num_workers, num_bytes, closes
):
    """Each swap of one worker with its peers: a word of readiness, its message's rounds, a delay.
    Between two swaps of a connection nothing is sent for so long.
    """
    sizes = [num_bytes / 2**n for n in range(1, num_workers.bit_length())]
    connections = [Connection(14_480, math.inf) for _ in sizes]
    used_s: list[float | None] = [None] * len(sizes)
    at_s, expected_s = 0.0, []
    for _ in range(12):
        began_s = at_s
        for peer in [*range(len(sizes)), *reversed(range(len(sizes)))]:
            sends_s, last_s = at_s + 0.025, used_s[peer]
            if closes and last_s is not None:
                connections[peer].pause(sends_s - last_s, 0.05)
            waited_s = connections[peer].send(sizes[peer], FAR_RATE, 0.05)
            used_s[peer] = sends_s + waited_s + sizes[peer] / FAR_RATE
            at_s = sends_s + waited_s + sizes[peer] / FAR_RATE + 0.025
        expected_s.append(at_s - began_s)
    halving = replace(
        IDEAL,
        halving_doubling_bytes=1e12,
        rendezvous=True,
        initial_window_bytes=14_480,
        slow_start_after_idle=closes,
    )
    operation = of_all("all_reduce_mean", num_bytes, num_workers)
    found_s = repeated_s(operation, num_workers, halving)
    # The second takes idleness to be as long as in the first, which is longer than all others.
    assert found_s[0] == pytest.approx(expected_s[0], rel=0.01)
    assert found_s[2:] == pytest.approx(np.array(expected_s[2:]), rel=0.01)


def test_an_exchange_after_a_long_pause_finds_a_small_window():
    """2 s are eight timeouts: ten segments are left, and doubling goes on to 3/4 of what it was."""
    timeline = Timeline(
        CostModel(FAR, 2, GLOO), ComputeTimes(forward_s=2, backward_s=0, bucket_ready_s=(0,))
    )
    operation = of_all("exchange", 4_000_000, 2, shift=1)

    def step_s() -> float:
        before_s = float(timeline.time_s.max())
        timeline.begin_step()
        timeline.begin_job("backward_end")
        timeline.on_operation(operation)
        timeline.end_step()
        return float(timeline.time_s.max()) - before_s

    steps_s = [step_s() for _ in range(10)]
    connection, rtt_s = Connection(14_480, math.inf), 0.05 + 2 * GLOO.message_s
    waited_s = 0.0
    for step in range(10):
        if step:
            connection.pause(2 + rtt_s, rtt_s)
        waited_s = connection.send(4_000_000, FAR_RATE, rtt_s)
        assert steps_s[step] - 2 - 4_000_000 / FAR_RATE - rtt_s == pytest.approx(
            waited_s, abs=0.005
        )
    assert waited_s > 0.1


def test_bbr_keeps_its_windows():
    transport = GLOO.over(replace(FAR, congestion_control="bbr"))
    assert not transport.slow_start_after_idle
    asked = replace(FAR, congestion_control="bbr", tcp_slow_start_after_idle=True)
    assert not GLOO.over(asked).slow_start_after_idle
    assert GLOO.over(FAR).slow_start_after_idle
    assert not GLOO.over(replace(FAR, tcp_slow_start_after_idle=False)).slow_start_after_idle


def test_windows_are_whole_segments_and_come_to_rest():
    assert Window(14_481, 99 * 1448 + 1).in_segments(1448) == (11 * 1448, 100 * 1448)
    assert Window(14_480).in_segments(1448) == (14_480, math.inf)
    connections = Connections(GLOO)
    model = CostModel(FAR, 2, GLOO)
    operation = of_all("exchange", 1_000_000, 2, shift=1)
    at_s, seen = 0.0, []
    for _ in range(60):
        at_s += 0.4
        seen.append(connections.windows("them", at_s))
        cost = model.cost(operation, model.at(0)[0], seen[-1])
        at_s += float(np.max(cost.seconds))
        connections.used("them", cost, at_s)
    assert len(set(seen[:30])) > 2
    assert len(set(seen[30:])) == 1


def test_the_oldest_connections_are_forgotten_where_there_are_too_many(monkeypatch):
    monkeypatch.setattr("netsim.timeline.connections._MAX_CONNECTIONS", 2)
    connections, model = Connections(GLOO), CostModel(FAR, 2, GLOO)
    cost = model.cost(of_all("exchange", 1_000_000, 2, shift=1), model.at(0)[0])
    for key in "abc":
        connections.used(key, cost, 1.0)
    [initial] = connections.windows("new", 1.0)
    assert [connections.windows(key, 1.0) == (initial,) for key in "abc"] == [True, False, False]


def test_a_window_beyond_its_threshold_grows_by_a_twentieth_of_all_that_is_acknowledged():
    window = opened("cubic", 1e6, Window(2e5, 1e5), 1e9, 1e9, 1.0)
    assert window == pytest.approx((2e5 + 1e6 / 20, 1e5), rel=1e-9)


def test_slow_start_ends_at_the_threshold_that_hystart_finds():
    """Half of what the link holds in a round trip."""
    window = opened("cubic", 5e5, Window(5e5), 1e9, 2e6, 1.0)
    assert window == (1e6, 1e6)
