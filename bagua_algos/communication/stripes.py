"""Several process groups of the same workers: parts of one operation travel at once.

One TCP connection carries at most a window a round trip, and a lost packet halves the window. k
groups have k connections between each two workers. What only moves arrives bit for bit as by one
stream. gloo's ring adds up each element in an order that depends on its place in its part, so sums
for different k differ by rounding; they are equal on all workers for each k.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future, collect_all

from bagua_algos.communication.communicator import without_place

MOST_STREAMS = 16
"""gloo keeps two threads a group."""

SMALLEST_PART_BYTES = 16 << 10
"""Of less a message's own cost is greater than what another stream saves."""

# torch 2.13 renamed it and warns of the old name.
_all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


Group = dist.ProcessGroup | None
"""None is the default group."""


class Stripes:
    """One operation over one or more process groups.

    Args:
        groups: of the same workers in the same order, at least one.
        smallest_part_bytes: no part is smaller.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        smallest_part_bytes: int = SMALLEST_PART_BYTES,
    ) -> None:
        self.groups = tuple(groups)
        self._smallest_part_bytes = smallest_part_bytes

    def close(self) -> None:
        """Nothing: there are no threads."""

    def all_reduce_(self, x: Tensor) -> None:
        """Replace `x`, contiguous, by its sum over all workers."""
        self._run(
            [
                lambda part=part, group=group: [dist.all_reduce(part, group=group, async_op=True)]
                for group, part in self._parts(x)
            ]
        )

    def begin_all_reduce_(self, x: Tensor) -> Future[Tensor]:
        """Begin to replace `x`, contiguous, by its sum over all workers; of the future it is the
        value.
        """
        works = [dist.all_reduce(x, group=group, async_op=True) for group, x in self._parts(x)]
        futures = [work.get_future() for work in works if work is not None]

        def finished(done: Future[list[Future]]) -> Tensor:
            for stream, future in enumerate(done.value(), 1):
                with naming(stream, len(futures)):
                    future.wait()  # raises
            return x

        return collect_all(futures).then(finished)

    def broadcast_(self, x: Tensor, source: int) -> None:
        """Replace `x`, contiguous, by worker `source`'s."""
        self._run(
            [
                lambda part=part, group=group: [
                    dist.broadcast(part, group=group, group_src=source, async_op=True)
                ]
                for group, part in self._parts(x)
            ]
        )

    def all_gather(self, x: Tensor, y_N: Tensor) -> None:
        """Write the `x` of worker j to `y[j]`; all are contiguous."""
        parts = self._parts(x)
        if len(parts) == 1:
            _all_gather_single(y_N, x, group=self.groups[0])
            return
        outputs = zip(*([part for _, part in self._parts(y)] for y in y_N), strict=True)
        self._run(
            [
                lambda part=part, group=group, out=list(out): [
                    dist.all_gather(out, part, group=group, async_op=True)
                ]
                for (group, part), out in zip(parts, outputs, strict=True)
            ]
        )

    def send_and_receive(self, outgoing: dict[int, Tensor], incoming: dict[int, Tensor]) -> None:
        """Send a tensor to each worker of `outgoing` and receive one from each of `incoming`.

        All receives are posted before the first send, on all streams. In gloo the two directions of
        a pair share one connection, and data leaves only after a notice that the receiver is ready.
        A notice behind data, of its own stream or another one, would make the two directions run
        one after the other.
        """
        receives, sends = self._batches(dist.irecv, incoming), self._batches(dist.isend, outgoing)
        if not receives and not sends:  # a single worker has nobody
            return
        if len(self.groups) == 1:  # NCCL needs both directions in one batch
            self._run([_together([one for batch in (*receives, *sends) for one in batch])])
        else:
            self._run(*([_together(batch) for batch in turn] for turn in (receives, sends)))

    def _batches(
        self, operation: Callable[..., Any], tensors: dict[int, Tensor]
    ) -> list[list[dist.P2POp]]:
        """What `operation` does with the parts of each peer's tensor, by stream."""
        batches: dict[Group, list[dist.P2POp]] = {}
        for peer, x in tensors.items():
            for group, part in self._parts(x):
                one = dist.P2POp(operation, part, group=group, group_peer=peer)
                batches.setdefault(group, []).append(one)
        return list(batches.values())

    def _parts(self, x: Tensor) -> list[tuple[Group, Tensor]]:
        """`x` cut for as many groups as are worth it: the same cuts on every worker."""
        num_bytes = x.numel() * x.element_size()
        num_parts = max(1, min(len(self.groups), num_bytes // self._smallest_part_bytes))
        if num_parts == 1:
            return [(self.groups[0], x)]
        return list(zip(self.groups, x.view(-1).tensor_split(num_parts), strict=False))

    def _run(self, *turns: Sequence[Callable[[], Sequence[Any]]]) -> None:
        """Start all, a function for each stream in every turn, then wait for all; an error names
        the stream where there are several.
        """
        works: list[list[Sequence[Any]]] = []
        for starts in turns:
            works.append([])
            for stream, start in enumerate(starts, 1):
                with naming(stream, len(starts)):
                    works[-1].append(start())
        for started in works:
            for stream, requests in enumerate(started, 1):
                with naming(stream, len(started)):
                    for request in requests:
                        request.wait()


def _together(batch: list[dist.P2POp]) -> Callable[[], Sequence[Any]]:
    return lambda: dist.batch_isend_irecv(batch)


def check_transport(streams: int, has_pattern: bool, device: torch.device) -> None:
    """Raise `ValueError` for a number of streams, or a pattern, that there cannot be for tensors on
    `device`.
    """
    if not 1 <= streams <= MOST_STREAMS:
        raise ValueError(f"streams must be 1 to {MOST_STREAMS}, got {streams}")
    if device.type == "cpu":
        return
    if streams > 1:
        raise ValueError(
            "only gloo's operations are striped: leave streams at 1, and set NCCL_NSOCKS_PERTHREAD "
            "and NCCL_SOCKET_NTHREADS, by which NCCL opens several sockets itself"
        )
    if has_pattern:
        raise ValueError("only gloo's all-reduces have another pattern: NCCL chooses its own")


@contextmanager
def naming(stream: int, num_streams: int) -> Iterator[None]:
    """A `RuntimeError` within says which stream it is of, where there are several."""
    try:
        yield
    except RuntimeError as error:
        if num_streams == 1:
            raise
        raise RuntimeError(f"stream {stream} of {num_streams}: {without_place(error)}") from error


@contextmanager
def without_gaps(x: Tensor) -> Iterator[Tensor]:
    """`x` as gloo takes it, which moves what lies without a gap. What is written to it within is
    in `x` afterwards.
    """
    own = x.contiguous()
    yield own
    if own is not x:
        x.copy_(own)
