"""All-reduce in two rounds: every worker adds up one part for all, and hands out the sum.

    x_ij -> worker j            part j of worker i's numbers, to the owner of the part
    s_j = sum_i x_ij            in the order of halving and doubling: a balanced tree over the ranks
    s_j -> everyone

It sends the bytes of a ring, 2 (N - 1) / N of them, in 2 steps instead of 2 (N - 1), and over the
connections to all workers instead of one. Every element is added up in the same order wherever it
stands in whichever message: how gradients are put into buckets, how many streams there are, and
halving and doubling in its place change no bit. gloo's ring depends on all three.
"""

from collections.abc import Sequence

from torch import Tensor

from bagua_algos.communication.halving_doubling import Exchange, largest_power


def direct_(x: Tensor, rank: int, num_workers: int, send_and_receive: Exchange) -> None:
    """Replace `x`, contiguous, by its sum over all workers; a collective call.

    Args:
        x: of this worker.
        rank: this worker.
        num_workers: N.
        send_and_receive: between these workers.
    """
    parts = x.view(-1).tensor_split(num_workers)
    own = parts[rank]
    rows_N = own.new_empty(num_workers, own.numel())
    rows_N[rank] = own
    following = [(rank + i) % num_workers for i in range(1, num_workers)]
    send_and_receive(_filled(parts, following), _filled(rows_N.unbind(), following[::-1]))
    own.copy_(sum_(rows_N.unbind()))
    send_and_receive(_filled([own] * num_workers, following), _filled(parts, following[::-1]))


def sum_(rows: Sequence[Tensor]) -> Tensor:
    """The sum of N tensors, in the order in which halving and doubling adds up; overwrites some of
    them.
    """
    num_left = largest_power(len(rows))
    for row, beyond in zip(rows, rows[num_left:], strict=False):
        row += beyond
    while num_left > 1:
        num_left //= 2
        for row, other in zip(rows[:num_left], rows[num_left : 2 * num_left], strict=True):
            row += other
    return rows[0]


def _filled(tensors: list[Tensor] | tuple[Tensor, ...], peers: list[int]) -> dict[int, Tensor]:
    """The peers' tensors, without those that hold nothing."""
    return {peer: tensors[peer] for peer in peers if tensors[peer].numel()}
