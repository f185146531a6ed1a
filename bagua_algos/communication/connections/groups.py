"""torch's process groups beside a given one, for duplicates and parts; those that are left are used
again.
"""

import hashlib
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from bagua_algos.communication.stripes import Stripes

_Kind = tuple[dist.ProcessGroup | None, tuple[int, ...], timedelta | None]
"""The group that others were made beside, their workers, and their timeout."""

_FREE: dict[_Kind, dict[str, dist.ProcessGroup]] = {}
"""Groups that closed communicators have left, by torch's names, which all workers share."""


class Groups:
    """The workers of `group`, and more groups of them or of parts of them.

    Args:
        group: over which they agree; None means the default one.
        origin: beside which all are made.
        timeout: of those that are made; None means torch's default.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        origin: dist.ProcessGroup | None,
        timeout: timedelta | None,
    ) -> None:
        self.group = group
        self.origin = origin or group or dist.group.WORLD
        self.timeout = timeout
        self.rank = dist.get_rank(group)
        self.members = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))

    @property
    def device(self) -> torch.device:
        """Where tensors are taken from: by NCCL from the current GPU, by gloo from the CPU."""
        is_nccl = dist.get_backend(self.group) == dist.Backend.NCCL
        return torch.device("cuda", torch.cuda.current_device()) if is_nccl else torch.device("cpu")

    def part_of_this_worker(self, parts: Sequence[Sequence[int]]) -> Sequence[int]:
        """The ranks of the part that this worker is in."""
        [ranks] = [part for part in parts if self.rank in part]
        return ranks

    def all_say(self, own: Any) -> list[Any]:
        """What every worker says, by rank; a collective call."""
        words: list[Any] = [None] * len(self.members)
        dist.all_gather_object(words, own, group=self.group)
        return words

    def take(self, parts: Sequence[Sequence[int]], number: int) -> list[dist.ProcessGroup]:
        """Groups of the part that this worker is in; a collective call of all workers here.

        After an error they may have left different ones: they use again what all of them have.
        """
        ranks = self.part_of_this_worker(parts)
        members = tuple(self.members[rank] for rank in ranks)
        free = _FREE.setdefault((self.origin, members, self.timeout), {})
        common = set(free)
        if not self._is_same_within(parts, sorted(free)):
            names = self.all_say(sorted(free))
            common = set.intersection(*(set(names[rank]) for rank in ranks))
        chosen = [free.pop(name) for name in sorted(common)[:number]]
        return [*chosen, *(self._make(members) for _ in range(number - len(chosen)))]

    def leave(self, groups: Iterable[dist.ProcessGroup | None]) -> None:
        """Leave groups of all these workers to those who need some next. torch cannot end them
        safely one by one: a new group may be given the name of one that has ended, and would meet
        its traces.
        """
        for group in groups:
            if group is not None and group is not self.origin:
                kind = self.origin, self.members, self.timeout
                _FREE.setdefault(kind, {})[group.group_name] = group

    def _is_same_within(self, parts: Sequence[Sequence[int]], words: Sequence[str]) -> bool:
        """Whether the workers of each part have the same words: all workers agree on the answer.

        One operation where `all_gather_object` has two, each N - 1 round trips.
        """
        digest = hashlib.sha256(" ".join(words).encode()).digest()[:8]
        own = torch.tensor([int.from_bytes(digest, signed=True)], device=self.device)
        all_N = own.new_empty(len(self.members))
        Stripes([self.group]).all_gather(own, all_N)
        digests = all_N.tolist()
        return all(len({digests[rank] for rank in part}) == 1 for part in parts)

    def _make(self, members: Sequence[int]) -> dist.ProcessGroup:
        # torch names a group by its workers and by how many this process has made: every worker
        # has to make as many groups as the others, or they would wait for each other by two names.
        group = dist.new_group(list(members), timeout=self.timeout, use_local_synchronization=True)
        assert isinstance(group, dist.ProcessGroup), "this worker is one of the group's"
        connect(group)
        return group


def connect(group: dist.ProcessGroup | None = None) -> None:
    """NCCL connects in the first operation, in which all workers have to take part."""
    if dist.get_backend(group) == dist.Backend.NCCL:
        dist.all_reduce(torch.zeros(1, device="cuda"), group=group)


def limit_of(group: dist.ProcessGroup | None) -> float | None:
    """How long an operation of gloo's may take, seconds; None by another backend."""
    group = group or dist.group.WORLD
    assert group is not None, "it is initialised"
    try:
        backend = group._get_backend(torch.device("cpu"))
    except RuntimeError:  # there is none
        return None
    is_gloos = isinstance(backend, dist.ProcessGroupGloo)
    return backend.options._timeout.total_seconds() if is_gloos else None


def forget_left() -> None:
    """The default group ends: else the sockets of those that were left would stay open."""
    _FREE.clear()
