"""Hangs an algorithm on an unmodified model and optimizer.

    backward of layer  L ... 5 4 3 2 1     compute, the caller's thread
    lane 0   bucket        0     2         travels while backward goes on,
    lane 1   bucket          1     3       one bucket's latency behind another's transfer

Autograd tells when a parameter's gradient is final; a bucket whose parameters all are, and whose
predecessors were launched, is given to the algorithm on its lane. So the buckets of a lane travel
in the same order on every worker, whatever order their gradients came in. When backward returns,
all gradients are final: clipping and optimizers see what they would see without us.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bagua_algos.algorithm import Algorithm, Context
from bagua_algos.background import Background
from bagua_algos.backward import BackwardTracker
from bagua_algos.bucket import Bucket, build_buckets
from bagua_algos.communicator import Communicator
from bagua_algos.lane import CommunicationLane

DEFAULT_BUCKET_BYTES = 4 << 20
DEFAULT_TIMEOUT_S = 600.0


class Engine:
    """One algorithm at work on one model and optimizer, on the workers that `communicator` holds.

    The model's weights become those of worker 0. A parameter without a gradient in some backward
    counts as a gradient of zero there. Reentrant activation checkpointing is not supported.
    `exposed_communication_s` adds up the seconds that training waited for the lane: communication
    (and its compression) that compute did not hide.

    Args:
        model: a real worker's model, or a `StackedModel`.
        optimizer: over the model's parameters.
        algorithm: the relaxation.
        communicator: the other workers.
        bucket_bytes: a bucket is closed once it holds as much.
        timeout_s: the longest wait for one bucket.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        algorithm: Algorithm,
        communicator: Communicator,
        *,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        algorithm.check(communicator.world_size, optimizer)
        self.model = model
        self.algorithm = algorithm
        self.exposed_communication_s = 0.0
        buckets = build_buckets(
            model.parameters(),
            num_held=len(communicator.ranks),
            world_size=communicator.world_size,
            bucket_bytes=bucket_bytes,
        )
        self.context = Context(buckets=buckets, communicator=communicator, optimizer=optimizer)
        device = buckets[0].weights.device
        num_lanes = min(self._max_lanes(device), len(buckets))
        self._lanes = [CommunicationLane(communicator, device, timeout_s)]
        while len(self._lanes) < num_lanes:
            self._lanes.append(CommunicationLane(communicator.duplicate(), device, timeout_s))
        self._background_lanes = []
        if algorithm.uses_background:
            lane = CommunicationLane(communicator.duplicate(), device, timeout_s)
            self._background_lanes.append(lane)
            self.context.background = Background(lane)
        self._synchronizing = True
        self._backward = BackwardTracker(buckets, self._launch_bucket)
        self._hooks = [
            model.register_forward_pre_hook(self._before_forward),
            *self._backward.attach(self._after_gradient),
            optimizer.register_step_post_hook(self._after_step),
        ]
        self._start_equal()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of backward passes inside only accumulate locally (as in
        DistributedDataParallel).
        """
        before, self._synchronizing = self._synchronizing, False
        try:
            yield
        finally:
            self._synchronizing = before

    def pause(self) -> None:
        """End what the algorithm does in the background; the next step takes it up again.

        A collective call, for before an evaluation, a checkpoint and the end.
        """
        if self._overrides("on_pause"):
            self._submit("on_pause", lambda: self.algorithm.on_pause(self.context))
            self.exposed_communication_s += self._wait()

    @contextmanager
    def consensus(self) -> Iterator[float]:
        """The model to evaluate or save: within, every worker holds the mean of all workers'
        weights and buffers.

        Yields the spread of the workers' weights about that mean: the root of their mean squared
        distance, over the mean's norm. A collective call. Buffers stay averaged; weights that
        differ between workers return afterwards.
        """
        self.pause()
        communicator = self.context.communicator
        self._run("averaging of buffers", lambda: average_buffers_(self.model, communicator))
        if self.algorithm.workers_agree:
            yield 0.0
            return
        own = [bucket.weights.clone() for bucket in self.context.buckets]
        for bucket in self.context.buckets:
            self._run(
                "averaging of weights", lambda b=bucket: communicator.all_reduce_mean_(b.weights)
            )
        try:
            yield self._spread(own)
        finally:
            for bucket, weights in zip(self.context.buckets, own, strict=True):
                bucket.weights.copy_(weights)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the model's and the optimizer's: the algorithm's state.

        To be called after `pause`.
        """
        return {"state": self.context.state, "step": self.context.step}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from another engine's `state_dict`, of the same workers."""
        self.context.state = copy.deepcopy(state_dict["state"])
        self.context.step = state_dict["step"]

    def close(self) -> None:
        """Remove every hook and end the lanes; the model and the optimizer are plain again.

        `pause` first: what still goes on in the background is left to its end.
        """
        for hook in self._hooks:
            hook.remove()
        for lane in self._lanes + self._background_lanes:
            lane.close()

    def _max_lanes(self, device: torch.device) -> int:
        """Two lanes hide latency between processes on CPUs; NCCL wants one order for all."""
        communicator = self.context.communicator
        between_processes = len(communicator.ranks) < communicator.world_size
        is_ordered = self._overrides("on_forward")
        return 2 if between_processes and device.type == "cpu" and not is_ordered else 1

    def _start_equal(self) -> None:
        communicator = self.context.communicator
        for bucket in self.context.buckets:
            self._run("broadcast of weights", lambda b=bucket: communicator.broadcast_(b.weights))
        self.context.state = self.algorithm.init(self.context)

    def _before_forward(self, module: nn.Module, args: tuple) -> None:
        if module.training and torch.is_grad_enabled() and self._overrides("on_forward"):
            self._submit("on_forward", lambda: self.algorithm.on_forward(self.context))

    def _after_gradient(self, parameter: nn.Parameter) -> None:
        if not self._synchronizing:
            return
        if not self._backward.active:
            self._backward.begin()
            # Autograd calls it when the whole pass is done, before backward() returns (DDP and FSDP
            # do the same).
            torch.autograd.Variable._execution_engine.queue_callback(self._after_backward)
        self._backward.gradient_ready(parameter)

    def _launch_bucket(self, bucket: Bucket) -> None:
        if not self._overrides("on_bucket_ready"):
            return
        lane = bucket.index % len(self._lanes)
        context = replace(self.context, communicator=self._lanes[lane].communicator)
        self._submit(
            f"bucket {bucket.index} of {type(self.algorithm).__name__}",
            lambda: self.algorithm.on_bucket_ready(context, bucket),
            lane,
        )

    def _after_backward(self) -> None:
        self._backward.end()
        self.exposed_communication_s += self._wait()
        if self._overrides("on_backward_end"):
            self._submit("on_backward_end", lambda: self.algorithm.on_backward_end(self.context))
            self.exposed_communication_s += self._wait()

    def _after_step(self, optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
        if self._overrides("on_step_end"):
            self._submit("on_step_end", lambda: self.algorithm.on_step_end(self.context))
            self.exposed_communication_s += self._wait()
        self.context.step += 1

    def _spread(self, own: list[Tensor]) -> float:
        pairs = [
            (weights, bucket.weights)
            for weights, bucket in zip(own, self.context.buckets, strict=True)
        ]
        squares_w = sum((x - mean).double().square().sum(1, keepdim=True) for x, mean in pairs)
        assert isinstance(squares_w, Tensor)
        communicator = self.context.communicator
        self._run("averaging of spreads", lambda: communicator.all_reduce_mean_(squares_w))
        norm = sum(mean[0].double().square().sum().item() for _, mean in pairs)
        return (squares_w[0].item() / norm) ** 0.5 if norm else 0.0

    def _run(self, label: str, job: Callable[[], None]) -> None:
        self._submit(label, job)
        self._wait()

    def _submit(self, label: str, job: Callable[[], None], lane: int = 0) -> None:
        self._lanes[lane].submit(label, job)

    def _wait(self) -> float:
        return sum(lane.wait() for lane in self._lanes)

    def _overrides(self, moment: str) -> bool:
        return getattr(type(self.algorithm), moment) is not getattr(Algorithm, moment)


def average_buffers_(model: nn.Module, communicator: Communicator) -> None:
    """Replace every floating-point buffer (BatchNorm's moving averages) by its mean over all
    workers.
    """
    num_held = len(communicator.ranks)
    buffers = [b for b in model.buffers() if b.is_floating_point()]
    if not buffers:
        return
    flat_wn = torch.cat([b.reshape(num_held, -1).float() for b in buffers], dim=1)
    communicator.all_reduce_mean_(flat_wn)
    sizes = [b.numel() // num_held for b in buffers]
    for buffer, mean_wn in zip(buffers, flat_wn.split(sizes, dim=1), strict=True):
        buffer.copy_(mean_wn.reshape(buffer.shape))
