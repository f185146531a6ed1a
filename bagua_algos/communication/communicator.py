"""The interface between an algorithm and the other workers, and its observers.

Every tensor has the worker axis first: `[w, ...]`, the workers that this process holds (`ranks`).
A real worker holds itself (w = 1, `process_group.py`); a simulated run holds all of them (w = N,
`stacked.py`). An algorithm cannot tell the two apart.

Shape suffixes: w workers held here, N workers in all.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from torch import Tensor
from torch._C import _DistError

from bagua_algos.communication.threads.at_exit import Departures


class CommunicationError(RuntimeError):
    """A collective failed or ran into its time limit; the message names the workers waited for."""


_OF_GLOO = re.compile(r"gloo/\S*\.(cc|h):\d+\]|caused pair closure|Connection closed by peer")
"""In what gloo's errors say, which have no type of their own."""

_PLACE = re.compile(r"^\[[^]]*\] *|\[\S+\.(cc|h):\d+\] *")
"""In gloo's source, such as "[/path/of/pair.cc:129]"."""


@contextmanager
def telling_failures(rank: int) -> Iterator[None]:
    """Within, what gloo or NCCL says of lost workers is a `CommunicationError` of worker `rank`,
    also where it comes out of code of torch's own, such as DistributedDataParallel.
    """
    try:
        yield
    except CommunicationError:
        raise
    except RuntimeError as error:
        if isinstance(error, _DistError) or _OF_GLOO.search(str(error)):
            raise CommunicationError(f"worker {rank}: {reason_of(error)}") from error
        raise


def reason_of(error: RuntimeError) -> str:
    """The first sentence of torch's or gloo's error, without gloo's advice."""
    return without_place(error).partition(" This is typically caused by")[0].removesuffix(".")


def without_place(error: RuntimeError) -> str:
    """The first line, without the place in gloo's source."""
    return _PLACE.sub("", str(error).splitlines()[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One finished communicator operation, as an observer sees it.

    `num_bytes` is what every worker handed in, `ranks` are the workers that took part, `seconds`
    the time it blocked its caller on this process (0 where nothing was measured, as in a simulated
    run), and `peers[i]` the worker that `ranks[i]` sent to in an exchange.
    """

    name: str
    num_bytes: int
    ranks: tuple[int, ...]
    seconds: float = 0.0
    peers: tuple[int, ...] | None = None

    @property
    def world_size(self) -> int:
        """How many took part."""
        return len(self.ranks)

    @property
    def bytes_sent(self) -> float:
        """Payload bytes that one worker puts on the wire, by the bandwidth-optimal algorithm.

        Ring all-reduce: Patarasuk and Yuan 2009. A broadcast is counted as one copy a receiving
        worker.
        """
        others = self.world_size - 1
        factor = {
            "all_reduce_mean": 2 * others / self.world_size,
            "all_to_all": others / self.world_size,
            "reduce_scatter_mean": others / self.world_size,
            "all_gather": others,
            "broadcast": others / self.world_size,
            "exchange": 1,
        }[self.name]
        return factor * self.num_bytes


class Observer(Protocol):
    """Hears of every operation: a counter in a real run, a timeline in a simulated one."""

    def on_operation(self, operation: Operation) -> None:
        """Called after each operation, on the thread that communicated."""
        ...


class Averager(Protocol):
    """The primitives that make a consensus; a `Communicator` has them, and other classes may."""

    ranks: tuple[int, ...]

    def all_reduce_mean_(self, x_w: Tensor) -> None:
        """Replace `x[w, ...]` by its mean over all N workers; every worker gets the same bits."""
        ...

    def broadcast_(self, x_w: Tensor, source: int = 0) -> None:
        """Replace every row of `x[w, ...]` by the row of worker `source`."""
        ...


class Communicator(Averager, Protocol):
    """MPI-style primitives over the worker axis. All raise `CommunicationError`, and `ValueError`
    for a tensor that has other rows than they take, or is of integers where they average; all are
    collective calls. What they return has memory of its own, apart from what they were given.

    `ranks` are the workers held here, each a number below `world_size`. Where the communicator is a
    part of another, `members[r]` is the number of worker r among all; otherwise r itself.
    `hierarchy` is None where nodes are not known, or make no difference. `streams` is how many
    connections a duplicate has between each two workers, and `halving_doubling_bytes` up to which
    size its all-reduces go by halving and doubling. With `fixed_order` no setting changes the order
    in which the others add up. With `pieces` streams take pieces of large messages as they become
    free. `on_streams` is told the number of streams when that changes, also of duplicates.
    `departures` tells of workers that have ended; None where all are held here.
    """

    world_size: int
    streams: int
    halving_doubling_bytes: int
    fixed_order: bool
    pieces: bool
    on_streams: "Callable[[int], None] | None"
    members: tuple[int, ...]
    nodes: "Nodes | None"
    hierarchy: "Levels | None"
    observer: Observer | None
    clock: Callable[[], float]
    departures: Departures | None

    @property
    def shares_memory(self) -> bool:
        """Whether all-reduces go through memory that all workers share, in the fixed order."""
        ...

    @property
    def awaited(self) -> tuple[int, ...]:
        """The members that an operation under way is waiting for, as far as is known."""
        ...

    def limit_waits(self, limit_s: float) -> None:
        """Let no all-reduce through shared memory wait for longer, seconds."""
        ...

    def duplicate(self) -> "Communicator":
        """The same workers over connections of their own, for operations at the same time."""
        ...

    def close(self) -> None:
        """This duplicate is needed no longer, and no operation is under way; collective."""
        ...

    def use_transport(
        self, *, streams: int, halving_doubling_bytes: int, fixed_order: bool, pieces: bool
    ) -> None:
        """Have so many streams and that pattern from the next operation on; collective where there
        are more streams than ever before. Raises `ValueError` where there are none.
        """
        ...

    def split(self, parts: Sequence[Sequence[int]]) -> "list[Part]":
        """The parts that this process holds workers of, each a world of its own.

        `parts` share all workers out among them, in ascending order each (`check_parts`).
        """
        ...

    def all_to_all(self, x_wN: Tensor) -> Tensor:
        """`x[w, N, ...]` -> `y[w, N, ...]` with `y[i, j]` = row i of worker j."""
        ...

    def all_gather(self, x_w: Tensor) -> Tensor:
        """`x[w, ...]` -> `y[w, N, ...]` with `y[i, j]` = x of worker j. Read it, do not write to
        it: simulated workers share its memory.
        """
        ...

    def reduce_scatter_mean(self, x_wN: Tensor) -> Tensor:
        """`x[w, N, ...]` -> `y[w, ...]` with `y[i]` = the mean over all workers of row i."""
        ...

    def exchange(self, x_w: Tensor, peers: Sequence[int]) -> Tensor:
        """Send `x` of worker r to worker `peers[r]`, a permutation of all N; returns what
        arrived, `[w, ...]`.
        """
        ...

    def exchange_rows(self, x_w: Tensor, peers: Sequence[int]) -> Sequence[Tensor]:
        """`exchange`, as a tensor `[...]` for each of w workers. Read them before `x` changes, do
        not write to them: those of simulated workers are rows of `x`.
        """
        ...


Nodes = tuple[tuple[int, ...], ...]
"""The workers of each node."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some of a communicator's workers, with their own `communicator` and their `rows` of `x[w,
    ...]`.
    """

    communicator: Communicator
    rows: slice | list[int]

    def run_(self, x_w: Tensor, operation: Callable[[Tensor, Communicator], None]) -> None:
        """Let `operation` change this part's rows of `x[w, ...]` in place."""
        x_p = x_w[self.rows]
        operation(x_p, self.communicator)
        if not isinstance(self.rows, slice):  # the rows are a copy
            x_w[self.rows] = x_p


class Relay:
    """The observer of a part: it passes operations on to the observer of the whole."""

    def __init__(self, whole: Communicator) -> None:
        self._whole = whole

    def on_operation(self, operation: Operation) -> None:
        """Hand the operation to the observer of the whole, if it has one."""
        if self._whole.observer is not None:
            self._whole.observer.on_operation(operation)


def check_parts(parts: Sequence[Sequence[int]], world_size: int) -> None:
    """Raise `ValueError` unless every worker is in one of `parts`, each of them in ascending
    order.
    """
    everyone = sorted(rank for part in parts for rank in part)
    is_ascending = all(list(part) == sorted(part) and len(part) > 0 for part in parts)
    if everyone != list(range(world_size)) or not is_ascending:
        raise ValueError(
            f"every worker of 0..{world_size - 1} must be in exactly one part (or node), in "
            f"ascending order, got {[list(part) for part in parts]}"
        )


def check_permutation(peers: Sequence[int], world_size: int) -> None:
    """Raise `ValueError` unless `peers` sends to every worker exactly once."""
    if not _is_permutation(tuple(peers), world_size):
        raise ValueError(f"peers must be a permutation of 0..{world_size - 1}, got {list(peers)}")


@lru_cache(maxsize=64)  # exchanges come back every step, among up to thousands of workers
def _is_permutation(peers: tuple[int, ...], world_size: int) -> bool:
    return sorted(peers) == list(range(world_size))


def check_rows(name: str, x_w: Tensor, held: int) -> None:
    """Raise `ValueError` unless `x[w, ...]` has a row for each of the `held` workers."""
    if x_w.dim() == 0 or x_w.shape[0] != held:
        raise ValueError(
            f"{name} takes [{held}, ...], a row for each worker that is held here, got "
            f"{list(x_w.shape)}"
        )


def check_rows_for_each(name: str, x_wN: Tensor, held: int, world_size: int) -> None:
    """Raise `ValueError` unless `x[w, N, ...]` has a row for each of the N workers, too."""
    if x_wN.dim() < 2 or tuple(x_wN.shape[:2]) != (held, world_size):
        raise ValueError(
            f"{name} takes [{held}, {world_size}, ...], a row for each worker, of each worker that "
            f"is held here, got {list(x_wN.shape)}"
        )


def check_averages(name: str, x: Tensor) -> None:
    """Raise `ValueError` unless the type has means: integers would lose them."""
    if not (x.is_floating_point() or x.is_complex()):
        kind = str(x.dtype).removeprefix("torch.")
        raise ValueError(f"{name} averages numbers with a fraction, got {kind}: convert it first")


def num_bytes_per_worker(x_w: Tensor) -> int:
    """Bytes of one worker's row of `x[w, ...]`."""
    return math.prod(x_w.shape[1:]) * x_w.element_size()


Primitive = Callable[[Tensor, Communicator], None]
"""Changes `x[p, ...]` in place, by communication among the p workers."""


class Levels(Protocol):
    """The parties of a primitive: all workers, or the leaders of nodes. There are `num_parties`, p
    of them held here.
    """

    num_parties: int

    def of_parties(self, x_w: Tensor) -> Tensor:
        """The rows of `x[w, ...]` that take part, `[p, ...]`: none where no party is held here."""
        ...

    def run_(self, x_w: Tensor, primitive: Primitive) -> None:
        """Replace `x[w, ...]` by what `primitive` makes of the parties' rows, for every worker."""
        ...

    def weigh_(self, x_p: Tensor) -> None:
        """Scale the parties' `x[p, ...]`, so that their mean is one over workers."""
        ...

    def pace(self, like: Tensor) -> Tensor | float:
        """How far a party may go to its neighbours' average, as a factor of `like[p, ...]`."""
        ...


def named_workers(ranks: Sequence[int]) -> str:
    """For an error: "worker 3", "workers 1, 2" or "nobody"."""
    if not ranks:
        return "nobody"
    return ("worker " if len(ranks) == 1 else "workers ") + ", ".join(map(str, ranks))
