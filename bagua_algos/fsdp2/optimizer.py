"""The user's optimizer as an algorithm sees it where parameters are sharded."""

from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, overload

from torch import Tensor, nn
from torch.optim import Optimizer

from bagua_algos.fsdp2.shards import LocalShard, distributed, local

Group = dict[str, Any]


def of_shards(optimizer: Optimizer, shards: Sequence[LocalShard]) -> Optimizer:
    """An optimizer of the same class, whose groups and state are always those of `optimizer`, for
    the local `shards` of its parameters. It is not to be stepped.
    """
    view = object.__new__(type(optimizer))
    shard_of = {shard.whole: shard for shard in shards}
    vars(view).update(
        defaults=optimizer.defaults,
        param_groups=_Groups(optimizer, shard_of),
        state=_States(optimizer, shard_of),
    )
    return view


class _Groups(Sequence[Group]):
    """The groups with their options as they are now."""

    def __init__(self, optimizer: Optimizer, shard_of: dict[nn.Parameter, LocalShard]) -> None:
        self._optimizer = optimizer
        self._shard_of = shard_of

    @overload
    def __getitem__(self, index: int) -> Group: ...

    @overload
    def __getitem__(self, index: slice) -> list[Group]: ...

    def __getitem__(self, index: int | slice) -> Group | list[Group]:
        if isinstance(index, slice):
            return [self._of_shards(group) for group in self._optimizer.param_groups[index]]
        return self._of_shards(self._optimizer.param_groups[index])

    def __len__(self) -> int:
        return len(self._optimizer.param_groups)

    def _of_shards(self, group: Group) -> Group:
        held = [self._shard_of[p] for p in group["params"] if p in self._shard_of]
        return {**group, "params": held}


class _States(MutableMapping[nn.Parameter, dict[str, Any]]):
    """What the optimizer keeps of each shard: local tensors here, distributed ones there."""

    def __init__(self, optimizer: Optimizer, shard_of: dict[nn.Parameter, LocalShard]) -> None:
        self._optimizer = optimizer
        self._shard_of = shard_of

    def __contains__(self, shard: object) -> bool:
        return isinstance(shard, LocalShard) and shard.whole in self._optimizer.state

    def __getitem__(self, shard: nn.Parameter) -> dict[str, Any]:
        if shard not in self:
            raise KeyError(shard)
        own = self._optimizer.state[_whole(shard)]
        return {name: local(x) if isinstance(x, Tensor) else x for name, x in own.items()}

    def __setitem__(self, shard: nn.Parameter, own: dict[str, Any]) -> None:
        whole = _whole(shard)
        self._optimizer.state[whole] = {
            name: distributed(x, whole) if isinstance(x, Tensor) and x.shape == shard.shape else x
            for name, x in own.items()
        }

    def __delitem__(self, shard: nn.Parameter) -> None:
        del self._optimizer.state[_whole(shard)]

    def __iter__(self) -> Iterator[nn.Parameter]:
        return (shard for whole, shard in self._shard_of.items() if whole in self._optimizer.state)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _whole(shard: nn.Parameter) -> nn.Parameter:
    assert isinstance(shard, LocalShard)
    return shard.whole
