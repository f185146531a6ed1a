"""The plan of a run: all objects made, all numbers checked, nothing started. It knows no Hydra."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from bagua_algos import Algorithm
from bagua_algos.communication.communicator import Nodes
from bagua_algos.communication.patterns import Pattern, check_pattern
from bagua_algos.communication.streams import NumStreams, check_streams
from bagua_algos.worker_axis.stacking import WAYS
from experiments.plan.limits.of_pairs import Parts, check_device, check_workers
from experiments.plan.limits.of_runs import check_numbers
from experiments.plan.limits.of_targets import check_reachable
from experiments.tasks.base import Split, Task, TaskData, load_data
from experiments.tasks.batches import Batches
from experiments.tasks.loading.reading import Loaders
from experiments.tasks.partitions import IID, Shares
from experiments.tasks.samplers import InOrder, Loading, Order
from experiments.tasks.target import BITS_PER_BYTE, LOSS, WORD_ERROR_RATE, Target
from host.errors import UserError
from netsim.conditions.condition import NetworkCondition

if TYPE_CHECKING:  # training pulls in no simulator
    from netsim.timeline.compute import Variation

DEVICES = ("cpu", "cuda")
"""Where tensors are."""

MEASURED = "auto"
"""The way to compute simulated workers that is measured to be the fastest."""

MAX_TIMEOUT_S = 10_000_000
"""Four months; PyTorch's time limits hold no more than some centuries, and no infinity."""

BAGUA = "bagua"
"""The plugin for NCCL of the package bagua_net."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """How workers talk and where their tensors are: a torch.distributed backend and a device.

    Without a process group, the workers are simulated.

    Raises:
        ValueError: a device that there is not, or that the process group does not serve.
    """

    process_group: str | None
    device: str

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ValueError(f"device must be one of {', '.join(DEVICES)}, got {self.device}")
        check_device(self.process_group, self.device)

    @property
    def is_simulated(self) -> bool:
        """Whether one process holds all workers, and time is computed."""
        return self.process_group is None

    @property
    def has_gpu_workers(self) -> bool:
        """Whether real workers' processes enqueue what GPUs compute."""
        return self.process_group is not None and self.device == "cuda"


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The processes of a run, and what simulated ones compute with.

    Args:
        threads_per_worker: of torch.
        timeout_s: the longest wait for other workers in one collective.
        sharing: simulated workers that share a device such as this one.
        straggler: by what part of its compute time a simulated worker 0 is slower than the others.
        jitter: of simulated compute times; None: all equal.
        net_plugin: through which NCCL's workers communicate; None: NCCL's own sockets.
        stacking: how simulated workers are computed, a `Way` or "auto".

    Raises:
        ValueError: fewer than one thread or sharer, no time at all, a negative straggler, or an
            unknown plugin or way.
    """

    threads_per_worker: int
    timeout_s: float
    sharing: int = 1
    straggler: float = 0.0
    jitter: Variation | None = None
    net_plugin: str | None = None
    stacking: str = MEASURED

    def __post_init__(self) -> None:
        if self.threads_per_worker < 1:
            raise ValueError(
                f"threads_per_worker must be at least 1, got {self.threads_per_worker}"
            )
        if self.sharing < 1:
            raise ValueError(f"sharing must be at least 1, got {self.sharing}")
        if not 0 <= self.straggler < math.inf:
            raise ValueError(f"straggler must be at least 0 and finite, got {self.straggler}")
        if not 0 < self.timeout_s <= MAX_TIMEOUT_S:
            raise ValueError(
                f"timeout_s must be more than 0 and at most {MAX_TIMEOUT_S:,}, got {self.timeout_s}"
            )
        if self.jitter is not None and not hasattr(self.jitter, "factors"):
            raise ValueError(
                f"cluster.jitter must be one of its choices or null, got {self.jitter}"
            )
        if self.net_plugin not in (None, BAGUA):
            raise ValueError(f"net_plugin must be {BAGUA} or null, got {self.net_plugin}")
        if self.stacking not in (MEASURED, *WAYS):
            known = ", ".join([MEASURED, *WAYS])
            raise ValueError(f"cluster.stacking must be one of {known}, got {self.stacking}")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run, ready to be launched. Raises `ValueError` for a number that no run can have."""

    names: dict[str, str]
    algorithm: Algorithm
    net: NetworkCondition
    task: Task
    loading: Loading
    model: nn.Module
    make_optimizer: Callable[..., torch.optim.Optimizer]
    make_schedule: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]
    backend: Backend
    cluster: Cluster
    workers: int
    seed: int
    batch_size: int
    max_steps: int
    eval_every: int
    log_every: int
    target: Target
    stop_at_target: bool
    bucket_bytes: int
    streams: NumStreams
    pattern: Pattern
    pieces: bool | None
    autotune: bool
    precision: str
    accumulate: int
    clip_norm: float | None
    lr_scale: float
    checkpoint_every: int
    folder: Path
    resume: Path | None
    resume_step: int | None = None
    """The step of the checkpoint to go on from; None: the last that there is."""
    profile: Path | None
    trace: bool
    tracker: str | None

    @property
    def nodes(self) -> Nodes | None:
        """The workers of each node of the network, if it has nodes."""
        if self.net.nodes is None:
            return None
        size, ranks = self.net.nodes["size"], range(self.workers)
        return tuple(tuple(ranks[start : start + size]) for start in ranks[::size])

    @property
    def parts(self) -> Parts:
        """What other settings must fit."""
        return Parts(
            process_group=self.backend.process_group,
            has_nodes=self.nodes is not None,
            has_weights=self.loading.has_weights,
            needs_nodes=self.algorithm.needs_nodes,
            is_simulatable=self.algorithm.is_simulatable,
            is_resumable=self.algorithm.is_resumable,
            may_have_streams=self.algorithm.may_have_streams,
            uses_background=self.algorithm.uses_background,
            workers_agree=self.algorithm.workers_agree,
        )

    def evaluates_after(self, step: int) -> bool:
        """Whether an evaluation follows `step`: every `eval_every`th, and the last."""
        return step % self.eval_every == 0 or step == self.max_steps

    def load_data(self) -> TaskData:
        """The examples. Raises as `experiments.tasks.base.load_data`."""
        return load_data(self.task, for_tuning=self.loading.for_tuning)

    def batches(self, data: TaskData, ranks: tuple[int, ...]) -> Batches:
        """The training batches of the workers `ranks`. Raises `UserError` for too few examples."""
        if data.train.counts_epochs and self.loading.sampler.crop:
            raise UserError(
                f"task={self.names['task']} does not tell how long its examples are, which "
                "data.sampler=balanced goes by: take data.sampler=shuffled"
            )
        return Batches(
            num_examples=len(data.train),
            world_size=self.workers,
            ranks=ranks,
            batch_size=self.batch_size,
            seed=self.seed,
            counts_epochs=data.train.counts_epochs,
            order=self._order(data.train),
        )

    def _order(self, split: Split) -> Order:
        if split.is_stream and self.loading.partition == IID:
            return InOrder()
        return self.shares(split) or self.loading.sampler.order(self.task.lengths(split))

    @property
    def loaders(self) -> Loaders:
        """The processes that read examples, for each that trains."""
        return Loaders(
            number=self.loading.loaders,
            pins=self.backend.device == "cuda",
            limit_s=self.cluster.timeout_s,
        )

    def shares(self, split: Split) -> Shares | None:
        """The training examples that each worker has for itself; None: all share all. Raises
        `UserError` where they cannot be shared out so.
        """
        return self.loading.shares(
            split, num_workers=self.workers, batch_size=self.batch_size, seed=self.seed
        )

    def __post_init__(self) -> None:
        check_numbers(self)
        check_streams(self.streams, self.pieces)
        check_pattern(self.pattern)
        check_workers(self, self.parts)
        self.net.check_num_workers(self.workers)
        check_reachable(self.target, has_classes=self.task.num_classes is not None)
        if self.task.num_classes is None and self.target.metric != LOSS:
            raise ValueError(
                f"task={self.names['task']} has no classes, so that there is no "
                f"{self.target.metric}: give target.loss, or no target"
            )
        if self.target.metric == BITS_PER_BYTE and not self.task.labels_are_characters:
            raise ValueError(
                f"the labels of task={self.names['task']} are no bytes, which target.bits_per_byte "
                "is of: give target.loss"
            )
        if self.target.metric == WORD_ERROR_RATE and getattr(self.task, "decode", None) is None:
            raise ValueError(
                "target.word_error_rate is of texts: take task=dataset and give task.decode, a "
                "function that makes the text of a list of class numbers"
            )
