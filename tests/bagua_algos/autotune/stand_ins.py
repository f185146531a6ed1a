"""One worker's engine to an autotuner, without a model that trains, other workers and time: a test
says how long everything takes.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from bagua_algos.engine.bucket import Bucket

SLOWEST = 2.0
"""Times as long as here everything takes on the slowest of the workers."""


class Workers:
    """Of whom this one is neither the fastest nor the slowest."""

    def __init__(self, world_size: int = 3, **attributes: Any) -> None:
        self.world_size = world_size
        self.streams, self.halving_doubling_bytes = 1, 0
        self.fixed_order, self.shares_memory, self.pieces = False, False, False
        self.first_says: Sequence[int] | None = None
        self.__dict__.update(attributes)

    def all_gather(self, x_w: Tensor) -> Tensor:
        return torch.stack([x_w / 2, SLOWEST * x_w, *[x_w] * (self.world_size - 2)], 1)

    def broadcast_(self, x_w: Tensor) -> None:
        if self.first_says is not None:
            x_w.copy_(torch.tensor([self.first_says]))


class Dispatcher:
    """Notes what it was told to do, while the clock goes on."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self.num_lanes = self.num_used = 2
        self.done: list[str] = []
        self.uses: list[dict[str, Any]] = []
        self.seconds: Callable[[Workers, int], float] = lambda workers, num_buckets: 1.0
        self.wait_s = 0.0
        """For the others, whenever they come together."""

    def use(self, num_lanes: int, **transport: Any) -> None:
        self.num_used = num_lanes
        self.uses.append({"lanes": num_lanes, **transport})
        self._engine.context.communicator.__dict__.update(transport)

    def run(self, name: str, job: Callable[[], object]) -> None:
        assert name == "autotuning"
        job()
        self.done.append("together")
        self._engine.now_s += self.wait_s

    def run_buckets(self, name: str, job: Callable[..., object], buckets: Sequence[Any]) -> None:
        assert name == "autotuning"
        for bucket in buckets:
            job(self._engine.context.communicator, bucket)
        self.done.append("buckets")
        self._engine.now_s += self.seconds(self._engine.context.communicator, len(buckets))


class Engine:
    """Its parameters have so many elements of 4 bytes each; all gradients come in their order."""

    def __init__(self, sizes: Sequence[int], workers: Workers, **algorithm: Any) -> None:
        usual = {"all_reduces": True, "needs_nodes": False}
        rounds = {"steps_per_round": 1, "num_early_steps": 0}
        self.algorithm = SimpleNamespace(**(usual | rounds | algorithm))
        self.context = SimpleNamespace(communicator=workers, step=0, buckets=[])
        self.dispatcher = Dispatcher(self)
        self.parameters = [nn.Parameter(torch.zeros(size)) for size in sizes]
        self.backward = SimpleNamespace(order=list(self.parameters))
        self.now_s = 100.0
        self.held: str | None = None
        self.relayout([(parameter,) for parameter in self.parameters])

    def clock(self) -> float:
        return self.now_s

    def held_weight(self) -> str | None:
        return self.held

    def relayout(self, groups: Sequence[Sequence[nn.Parameter]]) -> None:
        self.context.buckets = [
            Bucket(
                index=index,
                parameters=tuple(group),
                starts=tuple(accumulate((p.numel() for p in group[:-1]), initial=0)),
                numel=sum(p.numel() for p in group),
                weights=torch.zeros(1, sum(p.numel() for p in group)),
                gradients=torch.zeros(1, sum(p.numel() for p in group)),
                memory_formats=(torch.contiguous_format,) * len(group),
            )
            for index, group in enumerate(groups)
        ]

    @property
    def layout(self) -> list[list[int]]:
        """The numbers of the parameters in each bucket."""
        numbers = {id(p): number for number, p in enumerate(self.parameters)}
        return [[numbers[id(p)] for p in b.parameters] for b in self.context.buckets]
