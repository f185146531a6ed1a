"""PyTorch's own data parallelism, untouched, in the same training loop as ours."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

from bagua_algos.algorithms.all_reduce import AllReduce
from bagua_algos.communication.communicator import Averager, Communicator
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.engine.algorithm import Algorithm, Context
from bagua_algos.engine.stopwatch import make_stopwatch

DEFAULT_BUCKET_MB = 25
"""The default of `bucket_cap_mb`, MiB."""


@dataclass(frozen=True, kw_only=True)
class TorchDDP(Algorithm):
    """`DistributedDataParallel` with its defaults and, if given, one of PyTorch's communication
    hooks.

    `comm_hook_state` makes the state of a hook that has one, anew for each run. `bucket_cap_mb`
    is DDP's own (MiB; None for its default). Raises `ValueError` for a state without a hook or a
    bucket without room. Source: torch.nn.parallel.DistributedDataParallel; arXiv 2006.15704.
    """

    family: ClassVar[str] = "baseline"
    is_simulatable: ClassVar[bool] = False

    comm_hook: Callable | None = None
    comm_hook_state: Callable[[], object] | None = None
    bucket_cap_mb: float | None = None

    def __post_init__(self) -> None:
        if self.comm_hook_state is not None and self.comm_hook is None:
            raise ValueError(
                f"comm_hook_state={self.comm_hook_state} is the state of no hook: set comm_hook too"
            )
        if self.bucket_cap_mb is not None and not self.bucket_cap_mb > 0:
            raise ValueError(f"bucket_cap_mb must be more than 0 or null, got {self.bucket_cap_mb}")

    @property
    def is_resumable(self) -> bool:
        """Only without a hook's state, which PyTorch does not save."""
        return self.comm_hook_state is None

    @property
    def may_have_streams(self) -> bool:
        """Only without a hook, which would talk by a group of its own."""
        return self.comm_hook is None

    @property
    def own_bucket_bytes(self) -> int:
        """DDP's own; its first bucket of 1 MiB is left out."""
        return int((self.bucket_cap_mb or DEFAULT_BUCKET_MB) * 2**20)

    def counterpart(self, buffer_bytes: Sequence[int] = ()) -> Algorithm | None:
        """All-reduce, and broadcasts of buffers; None with a hook of PyTorch's, whose operations
        are not known here.
        """
        if self.comm_hook is not None:
            return None
        return AllReduceAndBuffers(buffer_bytes=tuple(buffer_bytes))


def before_forks(algorithm: Algorithm) -> None:
    """Import what `DistributedDataParallel` asks for, which takes a second: once for all workers
    that are forked next.
    """
    if isinstance(algorithm, TorchDDP):
        import torch._dynamo.utils  # noqa: F401


@dataclass(frozen=True, kw_only=True)
class AllReduceAndBuffers(AllReduce):
    """What DDP does, for predictions: beside all-reduces, worker 0's buffers go to all workers
    before each forward, which waits for them; those of one type together (`broadcast_buffers`,
    torch.distributed._broadcast_coalesced).

    `buffer_bytes` are the sums by type. They are sent at the end of a step, after which only the
    next forward comes.
    """

    buffer_bytes: tuple[int, ...] = ()

    def on_step_end(self, context: Context) -> None:
        """Broadcast the buffers."""
        weights = context.buckets[0].weights
        for num_bytes in self.buffer_bytes:
            x_w = weights.new_empty((len(weights), num_bytes), dtype=torch.uint8)
            context.communicator.broadcast_(x_w)


class DistributedTorchDDP:
    """`TorchDDP` at work on a model; the same face as `bagua_algos.engine.engine.Engine`. Where the
    communicator has several streams, DDP's buckets are striped over them by a hook of ours.

    `exposed_communication_s` adds up the time from the last gradient of a backward pass to its
    end, which DDP spends waiting for its buckets.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        algorithm: TorchDDP,
        communicator: Communicator,
    ) -> None:
        self._communicator = communicator
        self._earlier_exposed_s = 0.0
        self._exposed = make_stopwatch(next(model.parameters()).device)
        self._hooks = [
            p.register_post_accumulate_grad_hook(self._after_gradient)
            for p in model.parameters()
            if p.requires_grad
        ]
        self._hooks.append(optimizer.register_step_pre_hook(self._before_step))
        self.model = DistributedDataParallel(model, bucket_cap_mb=algorithm.bucket_cap_mb)
        self._striped = None
        if communicator.streams > 1:
            assert algorithm.comm_hook is None, "PyTorch's hooks have one stream"
            self._striped = communicator.duplicate()
            self.model.register_comm_hook(self._striped, _striped_mean)
        elif algorithm.comm_hook is not None:
            state = algorithm.comm_hook_state() if algorithm.comm_hook_state else None
            self.model.register_comm_hook(state, _anonymous(algorithm.comm_hook))

    @property
    def exposed_communication_s(self) -> float:
        """Seconds from the last gradient of each backward pass to its end, added up."""
        return self._earlier_exposed_s + self._exposed.seconds

    @exposed_communication_s.setter
    def exposed_communication_s(self, seconds: float) -> None:
        self._earlier_exposed_s += seconds - self.exposed_communication_s

    def no_sync(self) -> AbstractContextManager[None]:
        """DDP's own."""
        return self.model.no_sync()

    def pause(self) -> None:
        """Nothing goes on beside training."""

    def stand_still(self) -> None:
        """Nothing goes on beside training."""

    @contextmanager
    def consensus(self, averager: Averager | None = None) -> Iterator[float]:
        """Worker 0's buffers on every worker, as DDP's next forward would make them; weights
        agree.
        """
        for buffer in self.model.buffers():
            (averager or self._communicator).broadcast_(buffer.unsqueeze(0))
        yield 0.0

    def state_dict(self) -> dict[str, Any]:
        """Nothing: `TorchDDP` with a hook that has a state cannot be resumed."""
        return {}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Nothing to load."""

    def close(self) -> None:
        """Remove what was added to the model and the optimizer."""
        for hook in self._hooks:
            hook.remove()
        if self._striped is not None:
            self._striped.close()

    def _after_gradient(self, parameter: nn.Parameter) -> None:
        self._exposed.start()

    def _before_step(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        self._exposed.stop()


def _striped_mean(
    workers: ProcessGroupCommunicator, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """DDP's own mean, its summands divided first as there, over several streams."""
    return workers.stripes.begin_all_reduce_(bucket.buffer().mul_(1 / workers.world_size))


def _anonymous(hook: Callable) -> Callable:
    """The same hook, which DDP does not know by its name: it refuses bf16's without NCCL, and
    gloo can.
    """

    def comm_hook(state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        return hook(state, bucket)

    return comm_hook
