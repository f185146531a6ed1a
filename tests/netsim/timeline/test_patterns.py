"""Rings, by hand and by event."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import wire_per_payload
from netsim.timeline.transport import NCCL
from tests.netsim.event_oracle import looped_ring_seconds, ring_seconds
from tests.netsim.operations import of_all
from tests.netsim.timeline.test_cost_model import FAR, IDEAL, seconds_of

WIRE_PER_PAYLOAD = wire_per_payload()


@pytest.mark.parametrize("num_workers", [2, 3, 4])
@pytest.mark.parametrize("num_segments", [1, 2, 8])
@pytest.mark.parametrize("rendezvous", [False, True])
@pytest.mark.parametrize("delay_ms", [0, 1, 5, 40])
def test_a_ring_of_equal_links_takes_as_long_as_its_segments(
    num_workers, num_segments, rendezvous, delay_ms
):
    transport = replace(IDEAL, num_segments=num_segments, rendezvous=rendezvous)
    condition = NetworkCondition(rate_mbit=100, delay_ms=delay_ms)
    num_bytes = 96_000 * num_workers
    piece_s = 96_000 * WIRE_PER_PAYLOAD * 8e-8
    expected_s = ring_seconds(
        2 * (num_workers - 1),
        [piece_s] * num_workers,
        [delay_ms / 1000] * num_workers,
        num_segments,
        rendezvous,
    )
    operation = of_all("all_reduce_mean", num_bytes, num_workers)
    seconds = seconds_of(operation, condition, num_workers, transport)
    # A receiver's word waits behind data in the model, up to a segment a hop, and not here.
    words_s = 2 * (num_workers - 1) * piece_s / num_segments if rendezvous else 0
    assert expected_s - 1e-9 <= seconds <= expected_s + words_s + 1e-9


@pytest.mark.parametrize("num_workers", [2, 4])
@pytest.mark.parametrize("segments_a_piece", [2, 3, 8, 33])
@pytest.mark.parametrize("rendezvous", [False, True])
@pytest.mark.parametrize("delay_ms", [0, 2, 50])
def test_a_ring_of_long_pieces_has_two_segments_in_flight(
    num_workers, segments_a_piece, rendezvous, delay_ms
):
    transport = replace(IDEAL, num_segments=2, segment_bytes=100_000, rendezvous=rendezvous)
    condition = NetworkCondition(rate_mbit=100, delay_ms=delay_ms)
    num_segments = 2 * (num_workers - 1) * segments_a_piece
    segment_s = 100_000 * WIRE_PER_PAYLOAD * 8e-8
    expected_s = looped_ring_seconds(
        num_workers, num_segments, segment_s, delay_ms / 1000, rendezvous
    )
    operation = of_all("all_reduce_mean", 100_000 * segments_a_piece * num_workers, num_workers)
    seconds = seconds_of(operation, condition, num_workers, transport)
    # A receiver's word waits behind data in the model, up to a segment a turn, and not here.
    words_s = num_segments / 2 * segment_s if rendezvous else 0
    assert expected_s - 1e-9 <= seconds <= expected_s + words_s + 1e-9


def test_a_ring_over_a_far_link_takes_all_of_its_delays():
    """553 MB over 4 workers: 0.694 s at 10 Gbit/s and 6 delays of 50 ms are 0.994 s. By chunks of 2
    MiB, each handed on when it has come, every one of the 66 chunks of a piece takes its delays.
    """
    operation = of_all("all_reduce_mean", 553_000_000, 4)
    bytes_s = 6 * 138_250_000 * WIRE_PER_PAYLOAD * 8e-10
    assert bytes_s + 6 * 0.05 == pytest.approx(0.994, abs=1e-3)
    whole = replace(IDEAL, segment_bytes=1e12)
    assert seconds_of(operation, FAR, 4, whole) == pytest.approx(bytes_s + 6 * 0.05)
    chunked = replace(NCCL, max_window_bytes=1e12, streams=1, has_trees=False)
    assert seconds_of(operation, FAR, 4, chunked) > 66 * 6 * 0.05


def test_an_all_gather_has_no_limit_of_its_segments_unless_the_library_has_one():
    operation = of_all("all_gather", 10_000_000, 2)
    free_s, limited_s = (
        seconds_of(operation, FAR, 2, replace(IDEAL, num_segments=2, gather_segment_bytes=limit))
        for limit in (None, 1_000_000)
    )
    segment_s = 1_000_000 * WIRE_PER_PAYLOAD * 8e-10
    assert free_s == pytest.approx(10 * segment_s + 0.05)
    assert limited_s == pytest.approx(5 * (segment_s + 0.05) + segment_s)


@pytest.mark.parametrize("slow_mbit", [1, 20, 90])
@pytest.mark.parametrize("num_segments", [1, 2])
def test_a_ring_is_as_fast_as_its_slowest_link(slow_mbit, num_segments):
    condition = NetworkCondition(
        rate_mbit=100, delay_ms=1, workers={1: {"up": {"rate_mbit": slow_mbit}}}
    )
    pieces_s = [
        100_000 * WIRE_PER_PAYLOAD * 8e-6 / rate_mbit for rate_mbit in (100, slow_mbit, 100, 100)
    ]
    transport = replace(IDEAL, num_segments=num_segments)
    expected_s = ring_seconds(6, pieces_s, [0.001] * 4, num_segments, rendezvous=False)
    operation = of_all("all_reduce_mean", 400_000, 4)
    assert seconds_of(operation, condition, 4, transport) == pytest.approx(expected_s, rel=0.1)


def test_a_segment_takes_the_time_of_its_own_streams_windows():
    """A ring of two pieces, each two windows of every stream: a round trip of 100 ms between them,
    so 50 ms and half a window's own time a segment, whatever the number of streams. The next
    segment waits for this one, for a delay there and for the word back, which comes before or after
    a segment of its worker.
    """
    window, per_byte_s = 100_000, WIRE_PER_PAYLOAD * 8e-10
    for streams in (1, 4):
        transport = replace(
            IDEAL, streams=streams, num_segments=2, rendezvous=True, max_window_bytes=window
        )
        segment_s = (0.1 + window * per_byte_s) / 2
        hop_s = segment_s + 0.1 + segment_s**2 / (segment_s + 0.05)
        last_s = 0.1 + streams * window * per_byte_s + 0.1
        operation = of_all("all_reduce_mean", 2 * 2 * window * streams, 2)
        assert seconds_of(operation, FAR, 2, transport) == pytest.approx(hop_s + last_s)


SLOW = NetworkCondition(rate_mbit=100, workers={1: {"rate_mbit": 10}})
UP_IN_8 = {1: {"rate_mbit": 10, "up": {"rate_mbit": 12.5}}}


def between(rate_mbit: float) -> dict[str, Any]:
    """Nodes of two workers."""
    return {"size": 2, "between": {"rate_mbit": rate_mbit}}


@pytest.mark.parametrize(
    ("name", "condition", "early"),
    [
        ("all_reduce_mean", SLOW, 2 * (10 - 1)),
        ("all_gather", SLOW, 10 - 1),
        # The word is late by 9 as before, but its sender then needs 2 a hop instead of 10.
        ("all_gather", replace(SLOW, workers={1: {"rate_mbit": 10, "up": {"rate_mbit": 50}}}), 0),
        # The first piece comes as slowly as it leaves.
        ("all_gather", replace(SLOW, workers={0: {"rate_mbit": 10}, 1: {"rate_mbit": 10}}), 9),
        ("all_gather", replace(SLOW, workers={1: {"up": {"rate_mbit": 10}}}), 0),
        ("all_gather", replace(SLOW, workers=None, rate_mbit=10), 0),
        (
            "all_gather",
            replace(SLOW, workers={0: {"up": {"rate_mbit": 10}}, 1: {"rate_mbit": 10}}),
            0,
        ),
        # Its sender needs 8 a hop, and so catches up by 2 at each of three.
        ("all_gather", replace(SLOW, workers=UP_IN_8), 9 - 3 * 2),
        ("all_reduce_mean", replace(SLOW, workers=UP_IN_8), 2 * (9 - 3 * 2)),
        # Worker 2 has its first piece over a link between nodes.
        ("all_gather", replace(SLOW, workers={2: {"rate_mbit": 10}}, nodes=between(100)), 9),
        ("all_gather", replace(SLOW, workers={2: {"rate_mbit": 10}}, nodes=between(10)), 0),
    ],
)
@pytest.mark.parametrize("is_held", [True, False])
def test_the_word_for_a_slow_workers_sends_waits_behind_the_first_piece_that_it_gets(
    name, condition, early, is_held
):
    """In each phase of a ring, in units of a piece of 400 kB at 100 Mbit/s; it has two segments of
    200 kB. It waits if these are larger than what sockets take at once.
    """
    operation = of_all(name, 1_600_000 if name == "all_reduce_mean" else 400_000, 4)
    held, free = (
        seconds_of(
            *(operation, condition, 4),
            replace(IDEAL, rendezvous=True, num_segments=2, socket_bytes=socket_bytes),
        )
        for socket_bytes in (199_999 if is_held else 200_000, 1e9)
    )
    piece_s = 400_000 * WIRE_PER_PAYLOAD * 8e-8
    assert held - free == pytest.approx(early * piece_s * is_held, abs=1e-9)


def test_a_ring_over_a_link_that_is_down_never_ends():
    condition = NetworkCondition(rate_mbit=100, faults=[{"worker": 1, "at_s": 0, "for_s": 9}])
    seconds = seconds_of(
        of_all("all_gather", 400_000, 4), condition, 4, replace(IDEAL, rendezvous=True)
    )
    assert seconds == np.inf
