import random

import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import LinkCondition
from netsim.links.forwarding import Forwarder

VNET = bytes(10)


class Sink:
    """A port that keeps what it is given."""

    def __init__(self) -> None:
        self.packets = []

    def send(self, packet: bytes) -> bool:
        self.packets.append(packet)
        return True


def mac(rank: int) -> bytes:
    return bytes([2, 0, 10, 0, 0, rank])


def packet(target: bytes, num_bytes: int = 1000) -> bytes:
    return VNET + target + mac(9) + b"\x08\x00" + bytes(num_bytes - 14)


def network(condition: NetworkCondition, num_workers: int = 4) -> tuple[Forwarder, list[Sink]]:
    sinks = [Sink() for _ in range(num_workers)]
    return Forwarder(condition, list(sinks)), sinks


def received(sinks: list[Sink]) -> list[int]:
    return [len(sink.packets) for sink in sinks]


def test_a_packet_goes_to_its_target_alone_and_a_broadcast_to_all_others():
    forwarder, sinks = network(NetworkCondition())
    forwarder.take(0, packet(mac(2)), 0)
    assert forwarder.deliver(0) == 1000
    assert received(sinks) == [0, 0, 1, 0]
    forwarder.take(0, packet(b"\xff" * 6), 0)
    forwarder.deliver(0)
    assert received(sinks) == [0, 1, 2, 1]


def test_what_goes_to_oneself_or_nobody_is_dropped():
    forwarder, sinks = network(NetworkCondition())
    forwarder.take(0, packet(mac(0)), 0)
    forwarder.take(0, packet(mac(77)), 0)
    forwarder.deliver(9)
    assert received(sinks) == [0, 0, 0, 0]


def test_a_packet_takes_its_time_once_on_both_links_together():
    forwarder, sinks = network(NetworkCondition(rate_mbit=8, delay_ms=100))
    forwarder.take(0, packet(mac(1)), 0)
    assert forwarder.deliver(0) == 0
    assert forwarder.next_due_s == pytest.approx(0.101)
    forwarder.deliver(0.1009)
    assert received(sinks) == [0, 0, 0, 0]
    forwarder.deliver(0.1011)
    assert received(sinks) == [0, 1, 0, 0]
    assert forwarder.next_due_s is None


def test_packets_that_are_read_late_go_on_in_the_order_of_time():
    forwarder, sinks = network(NetworkCondition())
    earlier, later = packet(mac(2), 100), packet(mac(2), 200)
    forwarder.take(1, later, 1.0002)
    forwarder.take(0, earlier, 1.0001)
    forwarder.deliver(2)
    assert sinks[2].packets == [earlier, later]


def test_a_packet_that_is_read_late_does_not_overtake_one_that_is_under_way():
    forwarder, sinks = network(NetworkCondition(rate_mbit=8))  # 1 us per byte
    earlier, later = packet(mac(2), 1000), packet(mac(2), 100)
    forwarder.take(0, earlier, 1)
    forwarder.deliver(1.0001)
    forwarder.take(0, later, 1.0002)
    forwarder.deliver(2)
    assert sinks[2].packets == [earlier, later]


def test_two_senders_share_a_receivers_downlink():
    forwarder, sinks = network(NetworkCondition(rate_mbit=8))
    for sender in (0, 1):
        for _ in range(10):
            forwarder.take(sender, packet(mac(2)), 0)
    for tick in range(1, 20):
        forwarder.deliver(tick / 1000 + 1e-9)
        assert received(sinks)[2] <= tick + 1
    forwarder.deliver(0.0201)
    assert received(sinks)[2] == 20


def test_nodes_add_a_shared_link_between_them():
    between = {"rate_mbit": 8, "delay_ms": 100}
    forwarder, sinks = network(NetworkCondition(nodes={"size": 2, "between": between}))
    forwarder.take(0, packet(mac(1)), 0)
    forwarder.deliver(0)
    assert received(sinks) == [0, 1, 0, 0]
    for sender in (0, 1):
        for _ in range(5):
            forwarder.take(sender, packet(mac(2 + sender)), 0)
    forwarder.deliver(0.1051)
    assert received(sinks)[2:] == [5, 0]
    forwarder.deliver(0.1101)
    assert received(sinks)[2:] == [5, 5]


def test_links_change_with_time_and_a_fault_cuts_a_worker_off():
    fault = {"worker": 1, "at_s": 5, "for_s": 2}
    forwarder, sinks = network(NetworkCondition(faults=[fault]))
    for at_s in (4, 5, 6, 7):
        forwarder.change(at_s)
        forwarder.take(0, packet(mac(1)), at_s)
        forwarder.take(1, packet(mac(0)), at_s)
        forwarder.take(2, packet(mac(3)), at_s)
        forwarder.deliver(at_s)
    assert received(sinks) == [2, 2, 0, 4]


def test_no_link_is_down_before_the_time_begins():
    fault = {"worker": 1, "at_s": 0, "for_s": 2}
    forwarder, sinks = network(NetworkCondition(faults=[fault]))
    arrived = []
    for at_s in (None, 0, 2):
        if at_s is not None:
            forwarder.change(at_s)
        forwarder.take(0, packet(mac(1)), at_s or 0)
        forwarder.deliver(at_s or 0)
        arrived.append(received(sinks)[1])
    assert arrived == [1, 1, 2]


def test_the_same_seed_loses_the_same_packets():
    lost = []
    for _ in range(2):
        forwarder, sinks = network(NetworkCondition(loss_pct=20))
        for _ in range(500):
            forwarder.take(0, packet(mac(1)), 0)
        forwarder.deliver(0)
        lost.append(received(sinks)[1])
    assert lost[0] == lost[1]
    assert 350 < lost[0] < 450


def test_no_two_links_draw_alike():
    between = {"delay_ms": 10, "jitter_ms": 10}
    forwarder, _ = network(NetworkCondition(nodes={"size": 2, "between": between}), 6)
    for link in forwarder.links:
        link.condition = LinkCondition(delay_ms=10, jitter_ms=10)
    due = {link.cross(0, 0, 1000) for link in forwarder.links}
    assert len(due) == len(forwarder.links) == 2 * (6 + 3)


def test_garbage_never_raises():
    forwarder, _ = network(NetworkCondition(rate_mbit=10, delay_ms=1, loss_pct=1))
    chosen = random.Random(0)
    for now in range(5000):
        garbage = chosen.randbytes(chosen.choice([0, 1, 9, 10, 11, 23, 24, 25, 60, 1500, 66_000]))
        target = chosen.choice(
            [b"", VNET + mac(1), VNET + b"\xff" * 6, b"\1\1" + bytes(8) + mac(2)]
        )
        forwarder.take(now % 4, target + garbage, now)
        forwarder.deliver(now)
    assert forwarder.num_forwarded > 100
