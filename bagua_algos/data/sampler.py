"""Samplers by which workers get examples of like cost at each step, so that none waits long."""

import math
from collections.abc import Iterator
from typing import Any, TypedDict, Unpack

from torch.utils.data import DataLoader, Dataset, DistributedSampler, Sampler

from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.data.balance import Balance, Indices
from bagua_algos.data.complexity import Complexity, column, digest
from bagua_algos.settings import check_flag, check_number, check_whole


class Order(TypedDict, total=False):
    """What the order of the examples follows from beside their costs; each has a default."""

    shuffle: bool
    seed: int
    random_level: float


class _BalancedSampler(Sampler[Any]):
    """What both samplers share: whose examples, which epoch, and where in it to begin.

    A position is counted in what one worker takes from the sampler: examples or batches.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        complexity: Complexity,
        num_replicas: int | None,
        rank: int | None,
        **order: Unpack[Order],
    ) -> None:
        communicator = None
        if num_replicas is None or rank is None:
            communicator = _default_workers()
            num_replicas = communicator.world_size if num_replicas is None else num_replicas
            rank = communicator.ranks[0] if rank is None else rank
        check_whole("num_replicas", num_replicas, least=1)
        check_whole("rank", rank, least=0, most=num_replicas - 1)
        self.balance = Balance(num_workers=num_replicas, **order)
        self.rank = rank
        self.epoch = 0
        self._begin = 0
        self.costs = column(complexity, dataset, communicator)
        if not len(self.costs):
            raise ValueError("the data set has no examples")

    def set_epoch(self, epoch: int) -> None:
        """Take the order of this epoch, from 0 up, from its beginning; of the epoch that
        `load_state_dict` has set, from where it was.
        """
        check_whole("epoch", epoch, least=0)
        if epoch != self.epoch:
            self.epoch, self._begin = epoch, 0

    def state_dict(self, num_taken: int) -> dict[str, Any]:
        """What goes on in the middle of this epoch, on every worker.

        Args:
            num_taken: how many of this sampler's examples (or batches) of the epoch this worker has
                trained on. The sampler cannot know: a `DataLoader` takes more ahead of time.

        Raises:
            ValueError: more than an epoch has.
        """
        check_whole("num_taken", num_taken, least=0, most=len(self))
        return {"epoch": self.epoch, "num_taken": num_taken, "order": self._order()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin the next iteration where another sampler's state was.

        Raises:
            ValueError: it was of other examples, workers or settings, so that the rest of the epoch
                would repeat some examples and leave out others; or `state_dict` never returned it.
        """
        if not _is_state(state_dict):
            raise ValueError(
                "this is no state of a balanced sampler: give what state_dict returned"
            )
        own, others = self._order(), state_dict["order"]
        for name, value in own.items():
            if others.get(name) != value:
                raise ValueError(
                    f"the state is of another order: {name} was {others.get(name)} and is {value}; "
                    "make the sampler as it was, or begin the next epoch with set_epoch"
                )
        epoch, num_taken = state_dict["epoch"], state_dict["num_taken"]
        check_whole("the state's epoch", epoch, least=0)
        check_whole("the state's num_taken", num_taken, least=0, most=self._length(epoch))
        self.epoch, self._begin = epoch, num_taken

    def _take_begin(self) -> int:
        begin, self._begin = self._begin, 0
        return begin

    def _order(self) -> dict[str, Any]:
        """All that an epoch's order follows from."""
        return {
            "num_workers": self.balance.num_workers,
            "seed": self.balance.seed,
            "random_level": self.balance.random_level,
            "shuffle": self.balance.shuffle,
            "num_examples": len(self.costs),
            "costs": digest(self.costs).hex(),
        }

    def __len__(self) -> int:
        """What one worker takes in this epoch."""
        return self._length(self.epoch)

    def _length(self, epoch: int) -> int:
        raise NotImplementedError


class LoadBalancingDistributedSampler(_BalancedSampler, DistributedSampler[Any]):
    """In place of torch's `DistributedSampler`: every example once an epoch, dealt so that the
    workers' examples of each step cost nearly the same. It is a subclass of
    `DistributedSampler`, so Lightning and others leave it alone instead of dealing a worker's
    examples out again.

    Args:
        dataset: with a length.
        complexity: what an example costs: a column of numbers, or a function of an example, which
            is then measured once, by each worker for a share of them; with more processes or a
            cache by `measure_complexity`.
        num_replicas: workers; None: torch.distributed's.
        rank: of this worker; None: torch.distributed's.
        batch_size: of the `DataLoader` that takes from it. With it the examples of a batch cost
            nearly the same, too, so that they need little padding; with 1 only those that the
            workers have at the same place.
        shuffle: without it batches come in the order of their costs, the same in every epoch.
        seed: of the shuffle, the same on all workers.
        drop_last: leaves out so many random examples of each epoch that all workers have equally
            many. Otherwise as many random ones come twice.
        random_level: from 0, the best balance, to 1, a plain shuffle.

    Raises:
        ValueError: an argument out of range, a complexity that is negative or not finite, or
            workers with different complexities.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        complexity: Complexity,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        batch_size: int = 1,
        drop_last: bool = False,
        **order: Unpack[Order],
    ) -> None:
        check_flag("drop_last", drop_last)
        check_whole("batch_size", batch_size, least=1)
        super().__init__(dataset, complexity, num_replicas, rank, **order)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.dataset = dataset
        self.num_replicas = self.balance.num_workers
        self.shuffle, self.seed = self.balance.shuffle, self.balance.seed
        share = len(self.costs) / self.balance.num_workers
        self.num_samples = math.floor(share) if drop_last else math.ceil(share)
        if not self.num_samples:
            raise ValueError(
                f"{len(self.costs)} examples are not one for each of {self.balance.num_workers} "
                "workers: take drop_last=False, or fewer workers"
            )
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        begin = self._take_begin()
        yield from self._indices()[begin:].tolist()

    def _length(self, epoch: int) -> int:
        return self.num_samples

    def _indices(self) -> Indices:
        return self.balance.epoch(
            self.costs,
            self.epoch,
            batch_size=self.batch_size,
            num_taken=self.total_size,
        )[self.rank]

    def _order(self) -> dict[str, Any]:
        return super()._order() | {"batch_size": self.batch_size, "drop_last": self.drop_last}


class LoadBalancingDistributedBatchSampler(_BalancedSampler):
    """Batches by a budget instead of a number of examples: many short ones, or few long ones.

    At each step every worker has equally many examples, so that no loss needs a weight, and they
    are neighbours by cost. Their number times the cost of the dearest is at most `max_cost`, as a
    padded batch costs. Every example comes once an epoch; where the number of workers does not
    divide their number, a few random ones come twice.

    The number of batches may differ a little from epoch to epoch.

    Args:
        max_cost: of one worker's batch, such as tokens with padding.

    The other arguments are those of `LoadBalancingDistributedSampler`.

    Raises:
        ValueError: as there, and for an example that alone costs more than `max_cost`, or nothing.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        complexity: Complexity,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        max_cost: float,
        **order: Unpack[Order],
    ) -> None:
        check_number("max_cost", max_cost)
        super().__init__(dataset, complexity, num_replicas, rank, **order)
        dearest, cheapest = self.costs.argmax(), self.costs.argmin()
        if self.costs[dearest] > max_cost:
            raise ValueError(
                f"example {dearest} costs {self.costs[dearest]:g}, more than max_cost="
                f"{max_cost:g}: give a greater one, or leave such examples out of the data set"
            )
        if self.costs[cheapest] <= 0:
            raise ValueError(
                f"example {cheapest} costs {self.costs[cheapest]:g}, of which any number fits into "
                "a batch: give a complexity above 0"
            )
        self.max_cost = max_cost
        self._epoch_batches: tuple[int, list[Indices]] | None = None

    def __iter__(self) -> Iterator[list[int]]:
        begin = self._take_begin()
        for batch in self._batches(self.epoch)[begin:]:
            yield batch[self.rank].tolist()

    def _length(self, epoch: int) -> int:
        return len(self._batches(epoch))

    def _batches(self, epoch: int) -> list[Indices]:
        if self._epoch_batches is None or self._epoch_batches[0] != epoch:
            self._epoch_batches = (
                epoch,
                self.balance.batches(self.costs, epoch, budget=self.max_cost),
            )
        return self._epoch_batches[1]

    def _order(self) -> dict[str, Any]:
        return super()._order() | {"max_cost": self.max_cost}


def deals_to_workers(loader: DataLoader[Any]) -> bool:
    """Whether what `loader` takes is a worker's own share already."""
    samplers = [loader.sampler, loader.batch_sampler]
    samplers += [getattr(sampler, "sampler", None) for sampler in samplers]
    return any(isinstance(sampler, _BalancedSampler) for sampler in samplers)


def _is_state(given: object) -> bool:
    names = {"epoch", "num_taken", "order"}
    return isinstance(given, dict) and given.keys() >= names and isinstance(given["order"], dict)


def _default_workers() -> ProcessGroupCommunicator:
    try:
        return ProcessGroupCommunicator()
    except ValueError as error:
        raise ValueError(f"{error}, or give num_replicas and rank") from error
