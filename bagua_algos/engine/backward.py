"""Tracks which gradients of the current backward pass are final, and launches full buckets."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointFunction
from torch.utils.hooks import RemovableHandle

from bagua_algos.engine.bucket import Bucket
from bagua_algos.engine.call_stack import running


class BackwardTracker:
    """Collects gradients into their buckets and launches the buckets strictly in order, each as
    early as it can.

    Args:
        buckets: all of a model's buckets.
        launch: called once a backward pass and bucket, in the order of `buckets`.
    """

    def __init__(self, buckets: Sequence[Bucket], launch: Callable[[Bucket], None]) -> None:
        self._buckets = buckets
        self._launch = launch
        self._places = {
            parameter: (bucket, view)
            for bucket in buckets
            for parameter, view in zip(bucket.parameters, bucket.gradient_views(), strict=True)
        }
        self._missing: list[set[nn.Parameter]] = []

    def attach(self, on_gradient: Callable[[nn.Parameter], None]) -> list[RemovableHandle]:
        """Have autograd call `on_gradient(parameter)` whenever a gradient has been accumulated."""
        hooks = [p.register_post_accumulate_grad_hook(on_gradient) for p in self._places]
        for parameter, (_, view) in self._places.items():
            if not view.is_contiguous():
                hooks.append(parameter.register_hook(self._accumulate_apart(parameter, view)))
        return hooks

    def enter(self) -> bool:
        """To be called with each gradient, before `gradient_ready`: whether it is the first of a
        backward pass, which then begins.

        Raises `ValueError` where the pass before was broken off, and within reentrant activation
        checkpointing: each of its many backward passes would end as if it were the last.
        """
        number = torch._C._current_graph_task_id()
        if not self._missing:
            if running(CheckpointFunction.backward):
                raise ValueError(
                    "reentrant activation checkpointing is not supported: "
                    "call torch.utils.checkpoint.checkpoint(..., use_reentrant=False)"
                )
            self.begin()
            self._number = number
            return True
        if number != self._number:
            raise ValueError(
                "the last backward pass was broken off by an error, with some buckets on their "
                "way and others not: release() the model and distribute() it again, on all workers"
            )
        return False

    def begin(self) -> None:
        """A backward pass begins: no gradient is final yet."""
        self._missing = [set(bucket.parameters) for bucket in self._buckets]
        self._next = 0

    def gradient_ready(self, parameter: nn.Parameter) -> None:
        """`parameter.grad` is final: keep it in the bucket and launch what has become complete."""
        bucket, view = self._places[parameter]
        if parameter.grad is not view:  # zero_grad(set_to_none=True) had dropped the view
            assert parameter.grad is not None
            if parameter.grad.is_sparse:
                raise ValueError(
                    "sparse gradients are not supported: make the layer without sparse=True"
                )
            view.copy_(parameter.grad)
            parameter.grad = view
        self._missing[bucket.index].discard(parameter)
        while self._next < len(self._buckets) and not self._missing[self._next]:
            self._launch(self._buckets[self._next])
            self._next += 1

    def end(self) -> list[nn.Parameter]:
        """The pass is over: parameters that it left out have what had accumulated before, or else a
        gradient of zero. Returns the latter.
        """
        unused = []
        for parameter in [p for missing in self._missing for p in missing]:
            if parameter.grad is None:
                parameter.grad = self._places[parameter][1].zero_()
                unused.append(parameter)
            self.gradient_ready(parameter)
        self._missing = []
        return unused

    def _accumulate_apart(
        self, parameter: nn.Parameter, view: Tensor
    ) -> Callable[[Tensor], Tensor | None]:
        """Several workers' rows of a bucket lie apart, where autograd wants to add up one block and
        warns (its "gradient layout contract"): there the sum is made here.
        """

        def on_incoming(gradient: Tensor) -> Tensor | None:
            if parameter.grad is not view:
                return None
            parameter.grad = None
            return gradient + view

        return on_incoming
