from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from bagua_algos.communication.stripes import Stripes


class _Posted(NamedTuple):
    operation: object
    x: torch.Tensor
    group: str
    group_peer: int


_STREAMS: list[Any] = ["a", "b", "c"]
"""In place of process groups."""


@pytest.fixture
def batches(monkeypatch):
    """What has been given to torch, one list for each call."""
    calls = []
    monkeypatch.setattr(dist, "P2POp", _Posted)
    monkeypatch.setattr(dist, "batch_isend_irecv", lambda ops: calls.append(list(ops)) or [])
    return calls


def test_all_streams_are_ready_before_anything_is_sent_on_one_of_them(batches):
    outgoing, incoming = torch.arange(6.0), torch.empty(6)
    stripes = Stripes(_STREAMS, smallest_part_bytes=8)
    stripes.send_and_receive({1: outgoing}, {2: incoming})
    posted = [one for batch in batches for one in batch]
    assert [one.operation for one in posted] == 3 * [dist.irecv] + 3 * [dist.isend]
    assert [one.group_peer for one in posted] == [2, 2, 2, 1, 1, 1]
    assert [one.group for one in posted] == 2 * _STREAMS
    assert torch.equal(torch.cat([one.x for one in posted[3:]]), outgoing)


def test_the_directions_of_one_stream_are_one_batch_as_nccl_demands(batches):
    x = torch.arange(2.0)
    Stripes(_STREAMS[:1]).send_and_receive({1: x, 2: x}, {2: x, 1: x})
    [posted] = batches
    assert [one.operation for one in posted] == 2 * [dist.irecv] + 2 * [dist.isend]
    assert [one.group_peer for one in posted] == [2, 1, 1, 2]


@pytest.mark.parametrize("num_streams", [1, 3])
def test_a_worker_that_has_nobody_posts_nothing(batches, num_streams):
    """As in the all-to-all of one worker: torch takes no empty batch."""
    Stripes(_STREAMS[:num_streams]).send_and_receive({}, {})
    assert batches == []


@pytest.mark.parametrize(
    ("num_elements", "num_parts"), [(1, 1), (3, 1), (4, 2), (5, 2), (6, 3), (100, 3)]
)
def test_no_part_is_smaller_than_what_pays_unless_the_whole_is(batches, num_elements, num_parts):
    outgoing = torch.arange(float(num_elements))
    Stripes(_STREAMS, smallest_part_bytes=8).send_and_receive({1: outgoing}, {})
    parts = [one.x for [one] in batches]
    assert len(parts) == num_parts and torch.equal(torch.cat(parts), outgoing)
    assert all(part.nbytes >= min(8, outgoing.nbytes) for part in parts)
