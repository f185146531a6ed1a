"""All-reduce by recursive halving and doubling, over messages between two workers at a time.

    halving     for d = P/2, P/4, ... 1:  swap halves with rank ^ d, add what comes, keep one half
    doubling    for d = 1, 2, ... P/2:    swap the sums, so that each has twice as many

P is the largest power of two up to N; each of the other N - P workers first hands its numbers to
one of the P and gets the sums at the end. 2 log2 N steps in place of a ring's 2 (N - 1), for the
same bytes where N is a power of two; but half of all leaves in one burst, which a far link answers
with losses or a small window. Every element is added up in the same order on whichever worker, and
however many streams there are: a balanced tree over the ranks.

Paper: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
2005, section 4.5. Differs from the paper: the N - P workers beyond hand over all at once, not by
halves.
"""

from collections.abc import Callable

from torch import Tensor

Exchange = Callable[[dict[int, Tensor], dict[int, Tensor]], None]
"""Sends a tensor to each worker of the first, and receives one from each of the second, at once."""


def halving_doubling_(
    x: Tensor,
    rank: int,
    num_workers: int,
    send_and_receive: Exchange,
) -> None:
    """Replace `x`, contiguous, by its sum over all workers; a collective call.

    Args:
        x: of this worker.
        rank: this worker.
        num_workers: N.
        send_and_receive: between these workers.
    """
    flat = x.view(-1)
    power = largest_power(num_workers)
    if rank >= power:
        send_and_receive({rank - power: flat}, {})
        send_and_receive({}, {rank - power: flat})
        return
    beyond = rank + power if rank + power < num_workers else None
    if beyond is not None:
        theirs = flat.new_empty(len(flat))
        send_and_receive({}, {beyond: theirs})
        flat.add_(theirs)
    for peer, kept, given in _halvings(rank, power, flat.numel()):
        came = flat.new_empty(len(kept))
        _swap(send_and_receive, peer, _of(flat, given), came)
        _of(flat, kept).add_(came)
    for peer, kept, given in reversed(_halvings(rank, power, flat.numel())):
        _swap(send_and_receive, peer, _of(flat, kept), _of(flat, given))
    if beyond is not None:
        send_and_receive({beyond: flat}, {})


def _halvings(rank: int, power: int, num_elements: int) -> list[tuple[int, range, range]]:
    """Each step's peer, and the elements that this worker keeps and that it gives away."""
    steps, low, high = [], 0, num_elements
    distance = power // 2
    while distance:
        middle = (low + high + 1) // 2
        halves = range(low, middle), range(middle, high)
        is_upper = bool(rank & distance)
        kept, given = halves[is_upper], halves[not is_upper]
        steps.append((rank ^ distance, kept, given))
        low, high = kept.start, kept.stop
        distance //= 2
    return steps


def _of(flat: Tensor, elements: range) -> Tensor:
    return flat[elements.start : elements.stop]


def _swap(
    send_and_receive: Exchange,
    peer: int,
    outgoing: Tensor,
    incoming: Tensor,
) -> None:
    """Nothing is sent where there is nothing to send."""
    send_and_receive(
        {peer: outgoing} if outgoing.numel() else {}, {peer: incoming} if incoming.numel() else {}
    )


def largest_power(num_workers: int) -> int:
    """The largest power of two up to it."""
    return 1 << (num_workers.bit_length() - 1)
