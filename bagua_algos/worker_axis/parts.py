"""Stacked workers computed part by part: each worker by itself, or several as one computation.

What is computed of a part is computed by one thread, so it does not depend on how many parts are
computed side by side.

Shapes: w workers held by this process, k of them in a part, b examples of each.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bagua_algos.worker_axis.gradients import StackedGradients
from bagua_algos.worker_axis.inputs import Inputs, any_of, each
from bagua_algos.worker_axis.rows import ModelOfRows, Part, Rows, goes_by_few
from bagua_algos.worker_axis.stacking import Stacking

LossOfRows = Callable[[ModelOfRows, slice], Tensor]
"""Given the model of the workers of a slice, their losses `[k]`."""


class InParts:
    """Computes stacked workers by `parts`, `shares` or in a `loop`, as `Stacking` says, or all of
    them as one part.

    With a loss, a part's backward pass follows its forward pass at once: what it has to remember
    is there for the workers that are computed side by side, not for all.
    """

    def __init__(self, rows: Rows, stacking: Stacking) -> None:
        self._rows = rows
        self._side_by_side = stacking.threads if stacking.way in ("parts", "shares") else 1
        self._is_stacked = stacking.way in ("parts", "vmap")
        self._in_places: weakref.ref[StackedGradients] | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._pool_process = 0

    def __call__(self, x_wb: Inputs, loss: LossOfRows | None) -> Tensor:
        """The outputs `[w, b, ...]`, or with `loss` the losses `[w]`; autograd gives them the
        gradients of the stacked parameters, not those of `x_wb`.
        """
        num_workers, trained = len(any_of(x_wb)), self._rows.trained()
        if self._is_stacked and goes_by_few(x_wb):
            return self._few_at_once(x_wb, loss)
        if self._is_stacked:
            parts = self._rows.stacked(num_workers, self._side_by_side)
        else:
            parts = self._rows.alone(num_workers)
        if torch.is_grad_enabled() and trained:
            return _PartsOfAutograd.apply(self, parts, x_wb, loss, *trained)
        return torch.cat(self.each(lambda part: _results(part, x_wb, loss), parts))

    def _few_at_once(self, x_wb: Inputs, loss: LossOfRows | None) -> Tensor:
        parts = self._rows.few_at_once(x_wb, self._side_by_side)
        results = self.each(lambda part: _results(part, x_wb, loss), parts)
        self._rows.take_attributes_of(parts[0])
        return torch.cat(results)

    def gradients(self, stacked: Sequence[nn.Parameter], *, at_once: bool) -> StackedGradients:
        """For those of a pass. Where they are kept there is room for one pass at a time, whose
        backward follows `at_once`.
        """
        is_free = self._in_places is None or self._in_places() is None
        gradients = StackedGradients(stacked, in_places=at_once and is_free)
        if at_once and is_free:
            self._in_places = weakref.ref(gradients)
        return gradients

    def each(self, compute: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        """What `compute` returns for each of the items."""
        if self._side_by_side == 1:
            return list(map(compute, items))
        if self._pool is None or self._pool_process != os.getpid():  # a fork has no threads
            self._pool, self._pool_process = _pool(self._side_by_side), os.getpid()
        state = _ThreadState()

        def alike(item: Any) -> Any:
            with state.taken_over():
                return compute(item)

        futures = [self._pool.submit(alike, item) for item in items]
        try:
            return [future.result() for future in futures]
        finally:  # after an error, too: else others would go on writing gradients
            for future in futures:
                future.cancel()
            wait(futures)

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts threads of its own."""
        return self.__dict__ | {"_pool": None, "_in_places": None}


def _results(part: Part, x_wb: Inputs, loss: LossOfRows | None) -> Tensor:
    """A part's outputs `[k, b, ...]`, or its losses `[k]`."""
    if loss is None:
        return part.compute(each(lambda x: x[part.rows], x_wb))
    return loss(part.compute, part.rows)


class _PartsOfAutograd(torch.autograd.Function):
    """One node of the graph for all workers."""

    @staticmethod
    def forward(
        ctx: Any,
        ways: InParts,
        parts: Sequence[Part],
        x_wb: Inputs,
        loss: LossOfRows | None,
        *stacked: nn.Parameter,
    ) -> Tensor:
        gradients = ways.gradients(stacked, at_once=loss is not None)

        def compute(part: Part) -> Tensor:
            with torch.enable_grad():
                results = _results(part, x_wb, loss)
                if loss is None:
                    return results
                gradients.put(part, results.sum())
            return results.detach()

        results = ways.each(compute, parts)
        ctx.ways, ctx.parts, ctx.gradients = ways, parts, gradients
        ctx.results = results if loss is None else None
        return torch.cat([result.detach() for result in results])

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        (weights_w,) = grad_outputs
        gradients, results = ctx.gradients, ctx.results
        assert gradients is not None, "workers computed in parts have one backward pass"
        ctx.gradients = ctx.results = None
        if results is None:
            gradients.scale_(weights_w)
        else:

            def compute(number: int) -> None:
                part = ctx.parts[number]
                gradients.put(part, results[number], weights_w[part.rows])
                results[number] = None

            ctx.ways.each(compute, range(len(results)))
        return None, None, None, None, *gradients.handed_on()


class _ThreadState:
    """What torch keeps for each thread, as the thread that makes this has it."""

    def __init__(self) -> None:
        self._with_gradients = torch.is_grad_enabled()
        self._autocast = [
            (device, torch.get_autocast_dtype(device))
            for device in ("cpu", "cuda")
            if torch.is_autocast_enabled(device)
        ]

    @contextmanager
    def taken_over(self) -> Iterator[None]:
        """Within, another thread computes as the first one would."""
        with torch.set_grad_enabled(self._with_gradients):
            if not self._autocast:
                yield
                return
            ((device, dtype),) = self._autocast
            with torch.autocast(device, dtype):
                yield


def _pool(num_threads: int) -> ThreadPoolExecutor:
    """Threads that compute by themselves alone."""
    of_caller = torch.get_num_threads()
    pool = ThreadPoolExecutor(num_threads, initializer=_compute_alone)
    all_there = threading.Barrier(num_threads)
    list(pool.map(lambda _: all_there.wait(timeout=60), range(num_threads)))
    torch.set_num_threads(of_caller)  # else threads that start later would have one, too
    return pool


def _compute_alone() -> None:
    """Have torch use one thread for what this one computes."""
    torch.get_num_threads()  # the first call in a thread sets its number to that of all
    torch.set_num_threads(1)
