"""What four real workers move in pieces, and what they say of one that fails: `python -m
tests.bagua_algos.communication.pieces_workers FOLDER 4`.
"""

import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import torch
from torch import Tensor

from bagua_algos.communication.communicator import CommunicationError
from bagua_algos.communication.pieces import PIECE_BYTES, SMALLEST_BYTES, Pieces
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from tests.bagua_algos.gloo import fork_workers

RIGHT = (1, 2, 3, 0)
STREAMS = 3
SHORT_BYTES = 400
SIZES = (4, 400, 404, 8_000, 4, 20_000)
"""Elements of 4 bytes in four shares: a part of a piece for each worker, one piece, one and a bit,
five, a part again, and more than are posted ahead. In one go a ring's neighbour gets four times as
many.
"""
BORDER = SMALLEST_BYTES // 4
"""Elements of the smallest message that goes in pieces."""


def sent(rank: int, num_elements: int) -> Tensor:
    """No two elements of any worker are the same."""
    return torch.arange(num_elements, dtype=torch.int32)[None] + 1_000_000 * rank


def main(workers: ProcessGroupCommunicator) -> dict[str, Any]:
    return {
        "short": by_short_pieces(workers),
        "usual": by_usual_pieces(workers),
        "sums": sums(workers),
        "parts": of_parts(workers),
        "busy": with_a_busy_stream(workers),
        "silent": with_a_silent_stream(workers),
        "lost": with_a_lost_piece(workers),
        "gone": when_one_has_gone(workers),
    }


def in_pieces(workers: ProcessGroupCommunicator, **options: Any) -> ProcessGroupCommunicator:
    return workers.with_transport(streams=STREAMS, pieces=True, **options).duplicate()


def short_pieces(workers: ProcessGroupCommunicator) -> ProcessGroupCommunicator:
    """A duplicate by which the smallest messages go in pieces."""
    duplicate = in_pieces(workers)
    duplicate.stripes = Pieces(duplicate.stripes.groups, SHORT_BYTES, smallest_bytes=0)
    return duplicate


def by_short_pieces(workers: ProcessGroupCommunicator) -> list[tuple[Tensor, Tensor]]:
    duplicate = short_pieces(workers)
    found = [moved(duplicate, num_elements) for num_elements in SIZES]
    duplicate.close()
    after_a_while(num_threads, 0)
    return found


def moved(workers: ProcessGroupCommunicator, num_elements: int) -> tuple[Tensor, Tensor]:
    """What has arrived from the left, and from all."""
    x_w = sent(workers.ranks[0], num_elements)
    return workers.exchange(x_w, RIGHT), workers.all_to_all(x_w.view(1, 4, -1))


def by_usual_pieces(workers: ProcessGroupCommunicator) -> dict[str, Any]:
    """Below, at and beyond the border, and by connections that somebody has left; the threads."""
    assert num_threads() == 0
    duplicate = in_pieces(workers)
    found: dict[str, Any] = {"below": moved(duplicate, BORDER - 4)}
    found["threads below"] = num_threads()
    found["at"] = moved(duplicate, BORDER)
    found["threads"] = num_threads()
    found["beyond"] = moved(duplicate, 4 * BORDER)
    duplicate.close()
    again = in_pieces(workers)
    found["is used again"] = set(duplicate.stripes.groups) <= set(again.stripes.groups)
    found["again"] = moved(again, 4 * BORDER)
    again.use_transport(streams=2, halving_doubling_bytes=0, fixed_order=False, pieces=True)
    found["by two"] = moved(again, 4 * BORDER)
    again.use_transport(streams=1, halving_doubling_bytes=0, fixed_order=False, pieces=True)
    found["by one"] = moved(again, 4 * BORDER)
    again.close()
    return found | {"threads after": after_a_while(num_threads, 0)}


def sums(workers: ProcessGroupCommunicator) -> dict[str, Tensor]:
    """In a fixed order, of a tensor that asks for a gradient, in pieces and in equal parts."""
    found = {}
    for name, options in {
        "directly": {"fixed_order": True},
        "halving and doubling": {"halving_doubling_bytes": 1 << 40},
    }.items():
        for way, pieces in (("in pieces", True), ("in equal parts", False)):
            workers_of_way = workers.with_transport(streams=STREAMS, pieces=pieces, **options)
            duplicate = workers_of_way.duplicate()
            generator = torch.Generator().manual_seed(workers.ranks[0])
            x_w = torch.randn(1, 4 * BORDER + 3, generator=generator, requires_grad=True)
            duplicate.all_reduce_mean_(x_w.data)
            duplicate.close()
            found[f"{name}, {way}"] = x_w.detach()
    return found


def of_parts(workers: ProcessGroupCommunicator) -> dict[str, Any]:
    """Two pairs, each by themselves."""
    whole = in_pieces(workers)
    [part] = whole.split([[0, 2], [1, 3]])
    pair = part.communicator
    x_w = sent(workers.ranks[0], BORDER)
    y_w = pair.exchange(x_w, (1, 0))
    whole.close()
    return {"pieces": pair.pieces, "of the other": y_w}


def with_a_busy_stream(workers: ProcessGroupCommunicator) -> dict[str, Any]:
    """What arrives where every worker is too busy to look at its first stream until all has come
    over the others; and how many pieces each stream was given.
    """
    duplicate = short_pieces(workers)
    stripes: Any = duplicate.stripes
    others_done = threading.Barrier(STREAMS)
    messages: list[list[Tensor]] = [[] for _ in range(STREAMS)]
    for at, stream in enumerate(stripes._streams):
        stream._receive = _ordered(stream._receive, others_done, comes_last=at == 0)
        stream._begin_to_send = _noting(stream._begin_to_send, messages[at])
    arrived = duplicate.exchange(sent(workers.ranks[0], 8_000), RIGHT)
    return {"arrived": arrived, "pieces sent": [len(of_stream) - 1 for of_stream in messages]}


def _ordered(
    receive: Callable[..., None], done: threading.Barrier, *, comes_last: bool
) -> Callable[..., None]:
    def receive_in_turn(*arguments: Any) -> None:
        if comes_last:
            done.wait(30)
        receive(*arguments)
        if not comes_last:
            done.wait(30)

    return receive_in_turn


def _noting(send: Callable[..., Any], messages: list[Tensor]) -> Callable[..., Any]:
    """`send`, which notes what it sends: pieces, and the word that there are no more."""

    def send_and_note(peer: int, message: Tensor) -> Any:
        messages.append(message)
        return send(peer, message)

    return send_and_note


def with_a_silent_stream(workers: ProcessGroupCommunicator) -> list[str]:
    """The last worker sends nothing on its second stream: what worker 0 is told, twice."""
    limit = timedelta(seconds=5)
    duplicate = short_pieces(ProcessGroupCommunicator(timeout=limit))
    told = []
    if workers.ranks[0] == 3:
        stripes: Any = duplicate.stripes
        stripes._streams[1]._send = lambda pieces, free: None
    for _ in range(2):
        try:
            duplicate.exchange(sent(workers.ranks[0], 8_000), RIGHT)
        except CommunicationError as error:
            told.append(str(error))
    workers.all_gather(torch.zeros(1, 1))  # else one might be gone before the limit
    return told


def with_a_lost_piece(workers: ProcessGroupCommunicator) -> str:
    """Worker 3 leaves one out: what worker 0, on its right, is told."""
    duplicate = short_pieces(workers)
    if workers.ranks[0] == 3:
        stripes: Any = duplicate.stripes
        for stream in stripes._streams:
            stream._begin_to_send = _without(5, stream._begin_to_send)
    try:
        duplicate.exchange(sent(workers.ranks[0], 8_000), RIGHT)
    except CommunicationError as error:
        return str(error)
    return ""


def _without(number: int, send: Callable[..., Any]) -> Callable[..., Any]:
    def send_others(peer: int, message: Tensor) -> Any:
        if int(message[:8].view(torch.int64)) == number:
            return Mock()
        return send(peer, message)

    return send_others


def when_one_has_gone(workers: ProcessGroupCommunicator) -> tuple[str, float]:
    """What the error says and the seconds until then, where the last worker has left."""
    duplicate = in_pieces(workers)
    moved(duplicate, 4 * BORDER)
    if workers.ranks[0] == 3:
        return "", 0.0
    started_s = time.monotonic()
    try:
        moved(duplicate, 80_000)
    except CommunicationError as error:
        return str(error), time.monotonic() - started_s
    return "nothing", 0.0


def num_threads() -> int:
    """That wait for streams."""
    return sum(thread.name == "communication" for thread in threading.enumerate())


def after_a_while(count: Callable[[], int], expected: int) -> int:
    """`count()` once it is as expected, or after ten seconds."""
    until_s = time.monotonic() + 10
    while count() != expected and time.monotonic() < until_s:
        time.sleep(0.02)
    return count()


if __name__ == "__main__":
    folder, world_size = sys.argv[1:]
    assert SHORT_BYTES < PIECE_BYTES
    sys.exit(fork_workers(main, Path(folder), int(world_size)))
