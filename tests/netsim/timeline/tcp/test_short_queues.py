"""Windows that a short queue keeps small, against loops of rounds in plain Python."""

import math
from dataclasses import replace

import numpy as np
import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import wire_per_payload
from netsim.timeline.cost_model import CostModel
from netsim.timeline.tcp import short_queues
from netsim.timeline.tcp.windows import Window
from netsim.timeline.transport import GLOO
from netsim.validation import gloo_measurements
from netsim.validation.calibrate import error
from tests.netsim.event_oracle import growing_rounds
from tests.netsim.operations import of_all
from tests.netsim.timeline.test_cost_model import IDEAL, seconds_of
from tests.paths import ROOT

SEGMENT = 1448
RTT_S = 0.1
RATE = 12.5e6  # 1.25 MB are in flight
QUEUE = 29 * SEGMENT  # of which a burst has 30 segments
BURST = 70_000
NETWORK = NetworkCondition(rate_mbit=100, delay_ms=50, queue_ms=4)


def seconds(num_bytes: float, **options) -> float:
    given = {"algorithm": "cubic", "rate": RATE, "rtt_s": RTT_S, "queue_bytes": QUEUE}
    given |= {"burst_bytes": BURST, "excess": 0} | options
    return float(short_queues.message_s(num_bytes=num_bytes, **given))


@pytest.mark.parametrize(
    ("algorithm", "kept", "growth"), [("cubic", 0.7, 0.9 / 1.7), (None, 0.7, 0.9 / 1.7)]
)
def test_windows_go_out_one_each_round_trip_and_grow(algorithm, kept, growth):
    """From between `kept` and all of what fits, until they stand. A message that ends anywhere in
    its last window leaves a half of a round trip before the end of that one's on the mean.
    """
    standing = float(short_queues.standing_bytes(RATE, RTT_S, QUEUE, SEGMENT)) / SEGMENT
    sizes = range(40, 8000, 13)
    expected_s = [
        RTT_S * growing_rounds(size, (1 + kept) / 2 * 30, growth, standing) for size in sizes
    ]
    found_s = [seconds(size * SEGMENT, algorithm=algorithm) for size in sizes]
    errors = (np.array(found_s) - expected_s) / RTT_S
    assert abs(errors.mean()) < 0.1  # of rounds; the longest message has some 90
    assert abs(errors).max() < 1
    assert max(expected_s) > 80 * RTT_S


def test_reno_halves_its_window_and_adds_a_segment_each_round_trip():
    found_s = seconds(2000 * SEGMENT, algorithm="reno")
    window, rounds, left = 0.75 * 30, 0, 2000.0
    while left > 0:
        rounds, left, window = rounds + 1, left - window, window + 1
    assert found_s == pytest.approx((rounds - 0.5) * RTT_S, rel=0.03)


def test_a_window_stands_at_some_queues_or_at_what_the_link_holds_whichever_is_less():
    short = short_queues.standing_bytes(1e9, 1, 0, SEGMENT)
    assert short == pytest.approx(2.5 * SEGMENT, rel=1e-3)
    assert short_queues.standing_bytes(RATE, RTT_S, 1e12, SEGMENT) == pytest.approx(RATE * RTT_S)
    equal = short_queues.standing_bytes(RATE, RTT_S, RATE * RTT_S / 2.5 - SEGMENT, SEGMENT)
    assert equal == pytest.approx(RATE * RTT_S / 2 ** (2 / 3))


@pytest.mark.parametrize(
    ("options", "num_bytes"),
    [
        ({"queue_bytes": BURST}, 1e7),  # what a host sends at once finds room
        ({"excess": 1, "queue_bytes": 1.5 * RATE * RTT_S}, 1e8),  # all windows do
        ({"excess": 0.1, "queue_bytes": BURST + 0.1 * (1.5 * RATE * RTT_S - BURST)}, 1e8),
        ({}, QUEUE + SEGMENT),  # the message does
        ({"algorithm": "bbr"}, 1e7),
        ({"queue_bytes": math.inf}, 1e7),
        ({"rtt_s": 0.0}, 1e7),
    ],
)
def test_what_a_queue_holds_costs_nothing(options, num_bytes):
    assert seconds(num_bytes, **options) == 0
    given = {"algorithm": "cubic", "rate": RATE, "rtt_s": RTT_S, "queue_bytes": QUEUE}
    given |= {"burst_bytes": BURST, "excess": 0} | options
    is_of_any_length = num_bytes > QUEUE + SEGMENT
    rate = short_queues.limited_rate(**given)
    assert (rate == RATE) == is_of_any_length


@pytest.mark.parametrize(
    ("options", "num_bytes"),
    [
        ({"queue_bytes": BURST - 1}, 1e7),
        ({"excess": 1, "queue_bytes": 1.49 * RATE * RTT_S}, 1e8),
        ({"excess": 0.1, "queue_bytes": BURST + 0.1 * (1.49 * RATE * RTT_S - BURST)}, 1e8),
        ({}, QUEUE + SEGMENT + 1),
    ],
)
def test_a_little_more_overflows(options, num_bytes):
    assert seconds(num_bytes, **options) > 0


@pytest.mark.parametrize("host_rate", [RATE, 1.01 * RATE, 2 * RATE, 100 * RATE])
def test_the_largest_window_that_finds_room_fills_the_queue_by_one_segment_less(host_rate):
    """A bucket of `BURST` at once, then segments at the host's rate; the link takes them at its
    own.
    """
    queue = 2 * BURST
    room = float(short_queues.room_bytes(queue, BURST, 1 - RATE / host_rate))
    sent = BURST + SEGMENT * np.arange(20_000)
    behind = sent - RATE * (sent - BURST) / host_rate
    fits = sent[behind <= queue].max()
    assert room == math.inf if host_rate == RATE else abs(room - fits) < SEGMENT


@pytest.mark.parametrize("name", ["exchange", "all_reduce_mean", "all_gather"])
def test_a_little_faster_uplink_makes_little_difference_to_a_short_queue(name):
    """10 ms of queue hold a bucket, and less and less of the window behind it."""
    operation = of_all(name, 4_000_000, 4, 1 if name == "exchange" else None)
    rates = [100, 100.001, *np.geomspace(100.1, 150, 200), 10_000]
    times_s = [
        seconds_of(
            operation,
            replace(NETWORK, queue_ms=10, workers={1: {"up": {"rate_mbit": float(rate)}}}),
            4,
        )
        for rate in rates
    ]
    steps = np.array(times_s[1:]) / times_s[:-1]
    assert steps.min() > 1 - 1e-9
    assert steps[:-1].max() < 1.12
    assert times_s[-1] > 3 * times_s[0]


def test_flows_share_the_queue():
    """Four flows with a quarter each take as many rounds, but that each grows as fast as one."""
    alone = seconds(4e6)
    shared = seconds(1e6, num_flows=4)
    quarter = (RATE, RTT_S, QUEUE, SEGMENT)
    standing = float(short_queues.standing_bytes(*quarter)) / SEGMENT / 4
    rounds = growing_rounds(1e6 / SEGMENT, 0.85 * 30 / 4, 0.9 / 1.7, standing)
    assert shared == pytest.approx(rounds * RTT_S, abs=RTT_S)
    assert shared < alone


@pytest.mark.parametrize("num_messages", [1, 2, 4, 12])
def test_of_several_messages_the_one_with_the_smallest_window_counts(num_messages):
    draws = np.random.default_rng(0).uniform(0.7, 1, size=(100_000, num_messages)).min(1)
    standing = float(short_queues.standing_bytes(RATE, RTT_S, QUEUE, SEGMENT)) / SEGMENT
    rounds = growing_rounds(300, 30 * draws.mean(), 0.9 / 1.7, standing)
    found_s = seconds(300 * SEGMENT, num_messages=num_messages)
    assert found_s == pytest.approx(rounds * RTT_S, abs=0.2 * RTT_S)


def test_about_a_half_of_many_hosts_bursts_meet():
    """Of three hosts two; then windows stand from the start, and a repair takes a round trip."""
    standing = short_queues.standing_bytes(RATE, RTT_S, 1.9 * BURST, SEGMENT)
    expected_s = (3 * 3e6 / standing + 0.5) * RTT_S
    met = {"num_flows": 3, "num_senders": 3, "queue_bytes": 1.9 * BURST}
    assert seconds(3e6, **met) == pytest.approx(expected_s)
    assert seconds(3e6, **met | {"queue_bytes": 2 * BURST}) == 0
    assert seconds(3e6, **met | {"num_senders": 2}) == 0


def test_the_rate_in_the_long_run_is_that_of_long_messages():
    arguments = ("cubic", RATE, RTT_S, QUEUE, BURST, 0)
    long, longer = seconds(1e9), seconds(2e9)
    assert short_queues.limited_rate(*arguments) == pytest.approx(1e9 / (longer - long))
    assert short_queues.limited_rate("bbr", *arguments[1:]) == RATE


@pytest.mark.parametrize("name", ["all_reduce_mean", "all_gather", "all_to_all", "broadcast"])
def test_a_short_queue_slows_every_collective_and_a_long_one_none(name):
    operation = of_all(name, 4_000_000, 4)
    short_s, long_s, longer_s = (
        seconds_of(operation, replace(NETWORK, queue_ms=queue_ms), 4) for queue_ms in (4, 400, 4000)
    )
    assert short_s > 1.5 * long_s
    assert long_s == longer_s


def test_an_exchange_takes_its_windows_round_trips():
    """By hand: 100 Mbit/s for 4 ms are 50 kB with headers; a round trip takes 100 ms. The smaller
    of two windows is 0.8 of what fits.
    """
    fits = 0.8 * (50_000 / wire_per_payload() + 1448) / 1448
    held = 12.5e6 / wire_per_payload() * 0.1 / 1448
    standing = held * (1 + (held / (2.5 * fits / 0.8)) ** 1.5) ** (-2 / 3)
    rounds = growing_rounds(4e6 / 1448, fits, 0.9 / 1.7, standing)
    cost_s = seconds_of(of_all("exchange", 4_000_000, 2, shift=1), NETWORK, 2)
    assert cost_s == pytest.approx(0.1 * rounds + 0.05, rel=0.02)


def test_streams_have_a_part_of_the_queue_each_and_grow_side_by_side():
    one, four = (
        seconds_of(
            of_all("exchange", 4_000_000, 2, shift=1),
            NETWORK,
            2,
            replace(IDEAL, streams=streams, smallest_part_bytes=1),
        )
        for streams in (1, 4)
    )
    assert 0.4 * one < four < 0.9 * one


def test_bursts_of_several_hosts_meet_in_an_all_to_all_and_in_no_ring():
    """At 8 ms the queue holds a host's burst of 70 kB, but not those of half of seven hosts."""
    short = replace(NETWORK, queue_ms=8)
    for name, slower in (("all_to_all", True), ("all_reduce_mean", False)):
        operation = of_all(name, 16_000_000, 8)
        times_s = {seconds_of(operation, c, 8) for c in (short, replace(NETWORK, queue_ms=400))}
        assert (len(times_s) == 2) == slower


def test_windows_stay_small_where_a_queue_is_short():
    model = CostModel(NETWORK, 2, IDEAL)
    operation = of_all("exchange", 40_000_000, 2, shift=1)
    cost = model.cost(operation, model.at(0)[0], (Window(14_480),))
    standing = short_queues.standing_bytes(
        12.5e6 / wire_per_payload(), 0.1, 50_000 / wire_per_payload()
    )
    assert cost.windows[0].num_bytes == pytest.approx(1.5 * standing)
    warm = model.cost(operation, model.at(0)[0])
    assert np.max(cost.seconds) > np.max(warm.seconds)


# What 2 and 4 gloo workers took in namespaces: made by `python -m netsim calibrate --queues`.
MEASURED = gloo_measurements.read(ROOT / "results" / "validation" / "queues.csv")


@pytest.mark.parametrize("network", sorted({m.network for m in MEASURED}, key=str))
def test_gloo_took_about_as_long_over_short_queues(network):
    errors = [abs(error(m, GLOO)) for m in MEASURED if m.network == network]
    assert len(errors) == 10
    assert np.median(errors) < (0.2 if network.is_fitted else 0.1)


def test_without_short_queues_the_same_would_be_predicted_far_too_fast():
    short = [m for m in MEASURED if m.queue_ms <= 5]
    blind = [error(replace(m, queue_ms=400), GLOO) for m in short]
    assert np.median(blind) < -0.6
    assert np.median(np.abs([error(m, GLOO) for m in short])) < 0.15


@pytest.mark.parametrize("rounds", [1, 2, 5, 9])
def test_so_many_windows_make_a_message(rounds):
    """10, 12, 14 and so on; 20 from the sixth on."""
    windows = [min(10 + 2 * place, 20) for place in range(rounds)]
    found = short_queues._rounds(sum(windows), np.asarray(10.0), np.asarray(20.0), 2.0)
    assert found == pytest.approx(rounds, abs=0.03)


def test_a_queue_that_holds_just_a_burst_overflows_where_several_meet_alone():
    """Then windows stand as in the long run from the start, and a round trip repairs the end."""
    just, less, more = (
        seconds(2000 * SEGMENT, queue_bytes=BURST + more, num_senders=3) for more in (0, -1, 1)
    )
    assert just == pytest.approx(more, rel=1e-3)
    assert abs(just - less) > 0.5 * RTT_S


def test_a_path_whose_queue_is_long_adds_nothing_beside_one_whose_queue_is_short():
    both = short_queues.message_s(
        "cubic", 2000 * SEGMENT, RATE, RTT_S, np.array([QUEUE, math.inf]), BURST, 0
    )
    assert both.tolist() == [seconds(2000 * SEGMENT), 0]


def test_a_message_little_larger_than_its_queue_leaves_within_a_round_trip():
    """The second of its windows is short, and leaves in the first half of its round on the mean."""
    took_s = seconds(QUEUE + 2 * SEGMENT)
    assert 0.5 * RTT_S < took_s < 0.95 * RTT_S
