import random
import struct

import pytest

from netsim.conditions.link import LinkCondition
from netsim.links.wire import Link, wire_bytes


def tcp_packet(payload_bytes: int, *, segment_bytes: int = 0) -> bytes:
    """A frame with a TCP header of 32 bytes, which starts at byte 34, and its virtio header."""
    gso_type = 1 if segment_bytes else 0
    header = bytearray(66)
    header[34 + 12] = 8 << 4
    return (
        struct.pack("=BBHHHH", 1, gso_type, 66, segment_bytes, 34, 16)
        + header
        + bytes(payload_bytes)
    )


def test_each_segment_of_a_gso_packet_has_headers():
    assert wire_bytes(tcp_packet(1448)) == 1514
    assert wire_bytes(tcp_packet(44 * 1448, segment_bytes=1448)) == 44 * 1514
    assert wire_bytes(tcp_packet(44 * 1448 + 1, segment_bytes=1448)) == 44 * 1514 + 67


def test_any_bytes_have_a_length():
    chosen = random.Random(0)
    for _ in range(2000):
        packet = chosen.randbytes(chosen.randrange(10, 200))
        assert wire_bytes(packet) >= len(packet) - 10


def test_packets_leave_one_after_the_other_at_the_rate_and_arrive_after_the_delay():
    link = Link(LinkCondition(rate_mbit=8, delay_ms=100), seed=0)  # 1 us per byte
    assert link.cross(0, 0, 1000) == pytest.approx((0.101, 0.001))
    assert link.cross(0, 0, 1000) == pytest.approx((0.102, 0.001))
    assert link.cross(5, 0, 1000) == pytest.approx((5.101, 0.001))


def test_a_second_link_of_the_same_rate_adds_nothing():
    first, second = (Link(LinkCondition(rate_mbit=8), seed=seed) for seed in (0, 1))
    for _ in range(5):
        crossed = first.cross(0, 0, 64_000)
        assert crossed is not None
        assert second.cross(*crossed, 64_000) == pytest.approx(crossed)


def test_what_finds_a_full_queue_is_dropped():
    link = Link(LinkCondition(rate_mbit=8, queue_ms=2.5), seed=0)
    crossed = [link.cross(0, 0, 1000) for _ in range(6)]
    assert [c is None for c in crossed] == [False, False, False, True, True, True]
    assert link.num_dropped == 3
    assert link.cross(0.003, 0, 1000) is not None


def test_jitter_stays_within_its_bounds_and_never_reorders():
    link = Link(LinkCondition(delay_ms=10, jitter_ms=4), seed=0)
    dues = [link.cross(t / 10_000, 0, 1000) for t in range(1000)]
    times = [due[0] for due in dues if due is not None]
    assert times == sorted(times)
    lone = Link(LinkCondition(delay_ms=10, jitter_ms=4), seed=0)
    delays = [(lone.cross(t, 0, 1000) or (0,))[0] - t for t in range(1000)]
    assert 0.006 <= min(delays) < 0.0065
    assert 0.0135 < max(delays) <= 0.014


def test_loss_is_as_frequent_as_asked_and_a_link_that_is_down_loses_all():
    link = Link(LinkCondition(loss_pct=10), seed=0)
    lost = sum(link.cross(0, 0, 1000) is None for _ in range(10_000))
    assert lost == link.num_lost
    assert abs(lost - 1000) < 4 * 30
    link.condition = LinkCondition(loss_pct=100)
    assert all(link.cross(0, 0, 1000) is None for _ in range(100))
