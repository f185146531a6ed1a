"""torch's process groups beside a given one, for duplicates and parts; those that are left are used
again.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _world

from bagua_algos.communication.communicator import telling_failures
from bagua_algos.communication.stripes import Stripes

_Kind = tuple[dist.ProcessGroup | None, tuple[int, ...], timedelta | None, str]
"""The group that others were made beside, their workers, their timeout, and what they connect."""

_FREE: dict[_Kind, dict[str, dist.ProcessGroup]] = {}
"""Groups that closed communicators have left, by torch's names, which all workers share."""


class Groups:
    """The workers of `group`, and more groups of them or of parts of them.

    Args:
        group: over which they agree; None means the default one.
        origin: beside which all are made.
        timeout: of those that are made; None means torch's default.
        device: of the tensors that they carry; None means the CPU where `group` serves it, else
            the current GPU.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None,
        origin: dist.ProcessGroup | None,
        timeout: timedelta | None,
        device: torch.device | None = None,
    ) -> None:
        self.group = group
        self.origin = origin or group or dist.group.WORLD
        self.timeout = timeout
        self.device = device or device_of(group)
        self.rank = dist.get_rank(group)
        self.members = tuple(dist.get_process_group_ranks(group or dist.group.WORLD))

    def check_carries(self, tensors: Mapping[str, Tensor]) -> None:
        """As `ProcessGroupCommunicator.check_carries`."""
        device, backends = self.device, backends_of(self.group)
        if device.type != "cpu" and backends.get(device.type, "gloo") == "gloo":
            raise ValueError(
                f"the model is on {device}, and the workers exchange tensors of the CPU by gloo: "
                "call init_process_group('nccl'), or leave the model on the CPU"
            )
        if device.type == "cpu" and "cpu" not in backends:
            raise ValueError(
                "the model is on the CPU, and the workers exchange tensors of GPUs by "
                f"{', '.join(backends.values())}: call init_process_group('gloo'), or move the "
                "model to a GPU"
            )
        for name, tensor in tensors.items():
            if tensor.device.type != device.type:
                raise ValueError(
                    f"{name} is on {tensor.device}, and the workers exchange tensors on {device}: "
                    "move the whole model there before it is distributed"
                )

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
        free = _FREE.setdefault(self._kind(members), {})
        common = set(free)
        digests, nums_of_groups = self._outline(sorted(free))
        if any(len({digests[rank] for rank in part}) > 1 for part in parts):
            names = self.all_say(sorted(free))
            common = set.intersection(*(set(names[rank]) for rank in ranks))
        chosen = [free.pop(name) for name in sorted(common)[:number]]
        num_missing = number - len(chosen)
        if num_missing:
            _make_up_to(max(nums_of_groups[rank] for rank in ranks))
        return [*chosen, *(self._make(members) for _ in range(num_missing))]

    def leave(self, groups: Iterable[dist.ProcessGroup | None]) -> None:
        """Leave groups of all these workers to those who need some next. torch cannot end them
        safely one by one: a new group may be given the name of one that has ended, and would meet
        its traces.
        """
        for group in groups:
            if group is not None and group is not self.origin:
                _FREE.setdefault(self._kind(self.members), {})[group.group_name] = group

    def _kind(self, members: tuple[int, ...]) -> _Kind:
        return self.origin, members, self.timeout, self.device.type

    def _outline(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """A digest of every worker's words, and how many groups it has, by rank.

        One operation where `all_gather_object` has two, each N - 1 round trips.
        """
        digest = hashlib.sha256(" ".join(words).encode()).digest()[:8]
        numbers = [int.from_bytes(digest, signed=True), _num_groups()]
        own = torch.tensor([numbers], device=self.device)
        all_N = own.expand(len(self.members), -1).clone()
        Stripes([self.group]).all_gather(own, all_N)
        digests, nums_of_groups = all_N.T.tolist()
        return digests, nums_of_groups

    def _make(self, members: Sequence[int]) -> dist.ProcessGroup:
        # torch names it by its workers and by how many groups a process has: if these had
        # different numbers, they would wait for each other by two names.
        with telling_failures(dist.get_rank(self.origin)):
            group = dist.new_group(
                list(members),
                timeout=self.timeout,
                backend=dist.get_backend(self.origin),
                use_local_synchronization=True,
            )
            assert isinstance(group, dist.ProcessGroup), "this worker is one of the group's"
            connect(group, self.device)
        return group


def _num_groups() -> int:
    """Of all that this process is a worker of."""
    return len(_world.pg_names)


def _make_up_to(number: int) -> None:
    """Have `number` groups: those that are missing are of this process alone. Others may have
    more, such as a group that a script has made of some workers.
    """
    for _ in range(number - _num_groups()):
        dist.new_group([dist.get_rank()], backend="gloo", use_local_synchronization=True)


def backends_of(group: dist.ProcessGroup | None) -> dict[str, str]:
    """Which back end of `group` serves tensors on each type of device, as {"cuda": "nccl"}."""
    pairs = dist.get_backend_config(group).split(",")
    return dict(pair.split(":") for pair in pairs)


def connect(group: dist.ProcessGroup | None, device: torch.device) -> None:
    """NCCL connects in the first operation, in which all workers have to take part."""
    if backends_of(group).get(device.type) == dist.Backend.NCCL:
        dist.all_reduce(torch.zeros(1, dtype=torch.float32, device=device), group=group)


def device_of(group: dist.ProcessGroup | None) -> torch.device:
    """Where tensors are that `group` carries: the CPU, if it serves that, else the current GPU."""
    if "cpu" in backends_of(group):
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


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
