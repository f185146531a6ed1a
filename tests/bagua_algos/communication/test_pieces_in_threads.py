"""Pieces between workers that are threads of this process, over groups that are queues."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any

import pytest
import torch
from torch import Tensor

from bagua_algos.communication import pieces
from bagua_algos.communication.pieces import AHEAD, Pieces
from bagua_algos.communication.stripes import Stripes

PIECE_BYTES, SMALLEST_BYTES = 40, 100
NUM_STREAMS = 3
END = -1
LIMIT_S = 30


class _Wire:
    """What is under way: a queue for each stream from each worker to each other one."""

    def __init__(self) -> None:
        self.queues: dict[tuple[int, int, int], SimpleQueue[Tensor | BaseException]] = {}
        self.first_is_late = False
        self.others_are_through = threading.Event()
        self._lock = threading.Lock()

    def of(self, *ends: int) -> SimpleQueue[Tensor | BaseException]:
        with self._lock:
            return self.queues.setdefault(ends, SimpleQueue())


class _Group:
    """Of one stream and one worker, in place of a process group."""

    def __init__(self, wire: _Wire, stream: int, rank: int) -> None:
        self.wire, self.stream, self.rank = wire, stream, rank
        self.sent: list[tuple[int, int]] = []
        self.tags: set[int] = set()
        self.num_awaited = 0
        self.error: BaseException | None = None

    def send(self, messages: list[Tensor], peer: int, tag: int) -> "_Sent":
        if self.error is not None:
            raise self.error
        [message] = messages
        self.sent.append((peer, int(message[:8].view(torch.int64))))
        self.tags.add(tag)
        self.wire.of(self.stream, self.rank, peer).put(message.clone())
        return _Sent(self)

    def recv(self, messages: list[Tensor], peer: int, tag: int) -> "_Due":
        self.tags.add(tag)
        return _Due(self, messages[0], peer)


class _Sent:
    def __init__(self, group: _Group) -> None:
        self._group = group

    def wait(self) -> None:
        self._group.num_awaited += 1


class _Due:
    def __init__(self, group: _Group, room: Tensor, peer: int) -> None:
        self._group, self._room, self._peer = group, room, peer

    def wait(self) -> None:
        group, wire = self._group, self._group.wire
        if group.stream == 0 and wire.first_is_late:
            assert wire.others_are_through.wait(LIMIT_S)
        try:
            message = wire.of(group.stream, self._peer, group.rank).get(timeout=LIMIT_S)
        except Empty:
            raise RuntimeError("timed out") from None
        if isinstance(message, BaseException):
            raise message
        self._room[: len(message)] = message
        if group.stream and int(message[:8].view(torch.int64)) == END:
            wire.others_are_through.set()


def groups(wire: _Wire, rank: int, num_streams: int = NUM_STREAMS) -> list[Any]:
    return [_Group(wire, stream, rank) for stream in range(num_streams)]


def in_pieces(own: Sequence[Any]) -> Pieces:
    return Pieces(own, PIECE_BYTES, SMALLEST_BYTES)


def together(*works: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(works)) as pool:
        return [one.result(2 * LIMIT_S) for one in [pool.submit(work) for work in works]]


def numbers(num_elements: int, sender: int, receiver: int) -> Tensor:
    """No two are the same, whoever sends them to whom."""
    first = 10_000 * sender + 1_000 * receiver
    return torch.arange(first, first + num_elements, dtype=torch.int32)


@pytest.mark.parametrize("num_elements", [25, 30, 31, 250])
def test_each_of_three_workers_has_what_the_others_have_sent(num_elements):
    """The smallest in pieces, whole pieces, a bit more, and more than are posted ahead."""
    wire, ranks = _Wire(), range(3)
    own = [groups(wire, rank) for rank in ranks]

    def work(rank: int) -> dict[int, Tensor]:
        others = [peer for peer in ranks if peer != rank]
        incoming = {j: torch.zeros(num_elements, dtype=torch.int32) for j in others}
        stripes = in_pieces(own[rank])
        stripes.send_and_receive({j: numbers(num_elements, rank, j) for j in others}, incoming)
        stripes.close()
        return incoming

    for rank, found in enumerate(together(*(lambda rank=rank: work(rank) for rank in ranks))):
        assert all(torch.equal(x, numbers(num_elements, j, rank)) for j, x in found.items())
    num_pieces = -(-4 * num_elements // PIECE_BYTES)
    for group in (group for of_rank in own for group in of_rank):
        assert group.tags == {PIECE_BYTES}
        assert group.num_awaited == len(group.sent)
        posted = pieces._POSTED[group]
        assert [len(posted[peer, PIECE_BYTES]) for peer in ranks if peer != group.rank] == 2 * [
            AHEAD
        ]
    for rank in ranks:
        for peer in (peer for peer in ranks if peer != rank):
            sent = [number for group in own[rank] for to, number in group.sent if to == peer]
            assert sorted(sent) == NUM_STREAMS * [END] + list(range(num_pieces))


def test_each_stream_begins_with_another_worker():
    """Else all would send to one worker at first, and then to the next."""
    own = groups(_Wire(), 0)
    stripes = in_pieces(own)
    stripes.send_and_receive({peer: numbers(250, 0, peer) for peer in (5, 7)}, {})
    stripes.close()
    assert [group.sent[0][0] for group in own] == [5, 7, 5]


def test_a_worker_may_only_send_and_another_only_receive():
    wire = _Wire()
    sender, receiver = in_pieces(groups(wire, 0)), in_pieces(groups(wire, 1))
    for first in (0, 7):
        y = torch.zeros(10, 25, dtype=torch.int32)
        x = numbers(250, first, 1).view(10, 25).requires_grad_(False)
        together(
            lambda x=x: sender.send_and_receive({1: x}, {}),
            lambda y=y: receiver.send_and_receive({}, {0: y}),
        )
        assert torch.equal(y, x)
    assert [list(stream._threads) for stream in sender._streams] == NUM_STREAMS * [["send"]]
    assert [list(stream._threads) for stream in receiver._streams] == NUM_STREAMS * [["receive"]]


def test_pieces_may_come_in_any_order():
    """All of the first stream come after all of the others."""
    wire = _Wire()
    wire.first_is_late = True
    sender, receiver = in_pieces(groups(wire, 0, 2)), in_pieces(groups(wire, 1, 2))
    x, y = numbers(250, 0, 1), torch.zeros(250, dtype=torch.int32)
    together(
        lambda: sender.send_and_receive({1: x}, {}), lambda: receiver.send_and_receive({}, {0: y})
    )
    assert torch.equal(y, x)
    assert wire.others_are_through.is_set()


def test_whoever_has_closed_them_may_use_them_again():
    wire = _Wire()
    sender, receiver = in_pieces(groups(wire, 0)), in_pieces(groups(wire, 1))
    for first in (0, 7):
        x, y = numbers(250, first, 1), torch.zeros(250, dtype=torch.int32)
        together(
            lambda x=x: sender.send_and_receive({1: x}, {}),
            lambda y=y: receiver.send_and_receive({}, {0: y}),
        )
        assert torch.equal(y, x)
        held = [thread for stream in sender._streams for thread in stream._threads.values()]
        assert len(held) == NUM_STREAMS
        sender.close()  # not only once nobody has them any longer
        for one in held:
            one._thread.join(LIMIT_S)
        assert not any(one._thread.is_alive() for one in held)


def test_what_is_too_small_for_pieces_goes_as_stripes_have_it(monkeypatch):
    calls = []
    monkeypatch.setattr(Stripes, "send_and_receive", lambda _, *messages: calls.append(messages))
    own = groups(_Wire(), 0)
    small, large = numbers(24, 0, 1), numbers(25, 0, 2)
    stripes = in_pieces(own)
    assert stripes.groups == tuple(own)
    stripes.send_and_receive({1: small, 2: large}, {})
    stripes.send_and_receive({}, {3: small})
    stripes.close()
    assert calls == [({1: small}, {}), ({}, {3: small})]
    assert {peer for group in own for peer, _ in group.sent} == {2}


@pytest.mark.parametrize("stream", range(NUM_STREAMS))
@pytest.mark.parametrize("error", [RuntimeError("a cable is cut"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("direction", ["send", "recv"])
def test_an_error_names_its_stream_and_nothing_is_tried_after_it(direction, error, stream):
    wire = _Wire()
    own = groups(wire, 0)
    stripes, messages = in_pieces(own), {1: numbers(250, 0, 1)}
    if direction == "send":
        own[stream].error = error
        outgoing, incoming = messages, {}
    else:
        outgoing, incoming = {}, messages
        for at in range(NUM_STREAMS):
            wire.of(at, 1, 0).put(error if at == stream else torch.tensor([END]).view(torch.uint8))
    with pytest.raises(type(error)) as raised:
        stripes.send_and_receive(outgoing, incoming)
    told = str(error) and f"stream {1 + stream} of {NUM_STREAMS}: {error}"
    assert str(raised.value) == told
    with pytest.raises(RuntimeError, match=f"^not tried after: {told or 'KeyboardInterrupt'}$"):
        stripes.send_and_receive({9: numbers(250, 0, 9)}, {})
    stripes.close()
    assert not any(peer == 9 for group in own for peer, _ in group.sent)
