"""Broadcasts down a tree and along a chain, by hand."""

from dataclasses import replace

import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import wire_per_payload
from netsim.timeline.transport import NCCL
from tests.netsim.event_oracle import chain_seconds
from tests.netsim.operations import of_all
from tests.netsim.timeline.test_cost_model import IDEAL, OPEN, cost_of, seconds_of

WIRE_PER_PAYLOAD = wire_per_payload()


@pytest.mark.parametrize(("num_workers", "num_messages"), [(2, 1), (3, 2), (4, 3), (8, 6)])
def test_a_broadcast_takes_the_messages_of_its_busiest_branch(num_workers, num_messages):
    condition = NetworkCondition(rate_mbit=100)
    message_s = 1_000_000 * WIRE_PER_PAYLOAD * 8e-8
    seconds = seconds_of(of_all("broadcast", 1_000_000, num_workers), condition, num_workers)
    assert seconds == pytest.approx(num_messages * message_s)


@pytest.mark.parametrize(
    ("num_workers", "size", "num_messages"),
    # Of three nodes, that of the root sends to 3, 4, 5 and 6; of eight workers, a node of 4 to all
    # of the other one; of nodes of 2, the root's sends to 2, 3, 4 and 5, and the next to 6 and 7.
    [(7, 3, 4), (8, 4, 4), (8, 2, 4 + 2)],
)
def test_the_messages_of_a_nodes_workers_share_its_link(num_workers, size, num_messages):
    condition = NetworkCondition(
        rate_mbit=1_000_000, nodes={"size": size, "between": {"rate_mbit": 10}}
    )
    message_s = 1_000_000 * WIRE_PER_PAYLOAD * 8e-7
    seconds = seconds_of(of_all("broadcast", 1_000_000, num_workers), condition, num_workers)
    assert seconds == pytest.approx(num_messages * message_s, rel=1e-3)


@pytest.mark.parametrize("num_workers", [2, 3, 4, 8])
@pytest.mark.parametrize("num_chunks", [1, 2, 20])
@pytest.mark.parametrize("slow_mbit", [100, 7])
@pytest.mark.parametrize("delay_ms", [0, 5, 100])
def test_a_broadcast_along_a_chain_takes_as_long_as_its_chunks(
    num_workers, num_chunks, slow_mbit, delay_ms
):
    transport = replace(IDEAL, chunk_bytes=50_000)
    slow_rank = num_workers // 2
    condition = NetworkCondition(
        rate_mbit=100,
        delay_ms=delay_ms,
        workers={slow_rank: {"down": {"rate_mbit": slow_mbit, "delay_ms": 3}}},
    )
    is_slow = [rank == slow_rank for rank in range(1, num_workers)]
    chunk_s = 50_000 * WIRE_PER_PAYLOAD * 8e-6
    chunks_s = [chunk_s / (slow_mbit if slow else 100) for slow in is_slow]
    delays_s = [(delay_ms + 3 * slow) / 1000 for slow in is_slow]
    seconds = seconds_of(
        of_all("broadcast", num_chunks * 50_000, num_workers), condition, num_workers, transport
    )
    assert seconds == pytest.approx(chain_seconds(num_chunks, chunks_s, delays_s))


def test_nccl_broadcasts_much_to_many_in_little_more_than_to_one():
    condition = NetworkCondition(rate_mbit=10_000)
    few, many = (seconds_of(of_all("broadcast", 10**9, n), condition, n, NCCL) for n in (2, 64))
    assert few < many < 1.05 * few


def test_along_a_chain_all_but_the_last_send_the_message_once():
    transport = replace(IDEAL, chunk_bytes=1000)
    condition = NetworkCondition(rate_mbit=100)
    cost = cost_of(of_all("broadcast", 1_000_000, 4), condition, 4, transport)
    link_s = 1_000_000 * WIRE_PER_PAYLOAD * 8e-8
    assert cost.sent_bytes == pytest.approx([1e6, 1e6, 1e6, 0])
    assert cost.busy_s[:4] == pytest.approx([link_s, link_s, link_s, 0])
    assert cost.busy_s[4:8] == pytest.approx([0, link_s, link_s, link_s])


@pytest.mark.parametrize("chunk_bytes", [None, 1_000_000])
def test_on_every_path_down_a_tree_a_window_opens_and_along_a_chain_at_once(chunk_bytes):
    """42 kB in windows of 14.48 kB and more wait for a round trip, less what the first window takes
    on the link. Of 4 workers in a tree the last gets the message by way of another one.
    """
    transport = replace(IDEAL, chunk_bytes=chunk_bytes)
    condition = NetworkCondition(rate_mbit=100, delay_ms=10)
    cold_s, warm_s = (
        seconds_of(of_all("broadcast", 42_000, 4), condition, 4, transport, window)
        for window in (14_480, OPEN)
    )
    waited_s = 0.02 - 14_480 * WIRE_PER_PAYLOAD * 8e-8
    assert cold_s - warm_s == pytest.approx(waited_s if chunk_bytes else 2 * waited_s)


@pytest.mark.parametrize("chunk_bytes", [None, 1_000_000])
def test_a_broadcast_begins_when_the_last_receiver_has_said_that_it_is_ready(chunk_bytes):
    condition = NetworkCondition(rate_mbit=100, delay_ms=1, workers={3: {"up": {"delay_ms": 7}}})
    operation = of_all("broadcast", 100_000, 4)
    transport = replace(IDEAL, chunk_bytes=chunk_bytes)
    at_once_s, ready_s = (
        seconds_of(operation, condition, 4, replace(transport, rendezvous=rendezvous))
        for rendezvous in (False, True)
    )
    assert ready_s - at_once_s == pytest.approx(0.007)
