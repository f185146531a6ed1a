"""Stacked workers computed one by one: each worker's row of the stacked weights is a model of its
own, whose parameters are views.

What is computed of a worker is computed by one thread, so it does not depend on how many workers
are computed side by side.

Shapes: w workers held by this process, b examples of each.
"""

import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bagua_algos.worker_axis.inputs import Inputs, any_of, call, each, parts

ModelOfRows = Callable[[Inputs], Tensor]
"""Of some workers: `[k, b, ...]` -> `[k, b, ...]`."""

LossOfRows = Callable[[ModelOfRows, slice], Tensor]
"""Given the model of the workers of a slice, their losses `[k]`."""

CHUNK = 1024
"""Examples that one model computes at once for all workers."""


class Row(NamedTuple):
    """The model of one worker, and its parameters that are trained."""

    model: nn.Module
    trained: tuple[nn.Parameter, ...]


class Rows:
    """Models of single workers, made when first asked for, and anew when the stacked tensors have
    moved. What a model changes in place changes the stacked tensors.

    Args:
        module: its parameters and buffers are `[w, ...]`.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._known: list[Row] = []
        self._addresses: list[int] = []

    def first(self, num_workers: int) -> list[Row]:
        """Those of the first workers."""
        addresses = [x.data_ptr() for x in self._tensors()]
        if addresses != self._addresses:
            self._known, self._addresses = [], addresses
        while len(self._known) < num_workers:
            self._known.append(self._make(len(self._known)))
        rows = self._known[:num_workers]
        for row in rows:
            if row.model.training != self._module.training:
                row.model.train(self._module.training)
        return rows

    def trained(self) -> list[nn.Parameter]:
        """The stacked parameters that are trained."""
        return [p for p in self._module.parameters() if p.requires_grad]

    def compute_all(self, x_wb: Inputs) -> Tensor:
        """The outputs of all workers by the model of worker 0; without gradients."""
        [row], x_b = self.first(1), each(lambda x: x.flatten(0, 1), x_wb)
        outputs_b = torch.cat([call(row.model, part) for part in parts(x_b, CHUNK)])
        return outputs_b.unflatten(0, any_of(x_wb).shape[:2])

    def _tensors(self) -> list[Tensor]:
        return [*self._module.parameters(), *self._module.buffers()]

    def _make(self, worker: int) -> Row:
        """A copy of the module, in which rows stand for the stacked tensors."""
        rows: dict[int, Any] = {}
        for parameter in self._module.parameters():
            row = nn.Parameter(parameter.detach()[worker], parameter.requires_grad)
            rows[id(parameter)] = row
        for buffer in self._module.buffers():
            rows[id(buffer)] = buffer[worker]
        model = copy.deepcopy(self._module, rows)
        return Row(model, tuple(p for p in model.parameters() if p.requires_grad))

    def __getstate__(self) -> dict[str, Any]:
        """A copy makes its own models."""
        return {"_module": self._module, "_known": [], "_addresses": []}


class RowByRow:
    """Computes stacked workers one by one, `side_by_side` of them at a time, each in a thread.

    With a loss, a worker's backward pass follows its forward pass at once: what it has to remember
    is there for as many workers as are computed side by side, not for all.
    """

    def __init__(self, rows: Rows, side_by_side: int) -> None:
        self._rows = rows
        self._side_by_side = side_by_side
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, x_wb: Inputs, loss: LossOfRows | None) -> Tensor:
        """The outputs `[w, b, ...]`, or with `loss` the losses `[w]`; autograd gives them the
        gradients of the stacked parameters, not those of `x_wb`.
        """
        rows, stacked = self._rows.first(len(any_of(x_wb))), self._rows.trained()
        if torch.is_grad_enabled() and stacked:
            return _RowsOfAutograd.apply(self, rows, x_wb, loss, *stacked)
        results = self.each(lambda worker: _one(rows, x_wb, loss, worker), len(rows))
        return torch.stack(results) if loss is None else torch.cat(results)

    def each(self, compute: Callable[[int], Any], num_workers: int) -> list[Any]:
        """What `compute` returns for each worker."""
        if self._side_by_side == 1:
            return [compute(worker) for worker in range(num_workers)]
        if self._pool is None:
            self._pool = _pool(self._side_by_side)
        state = _ThreadState()

        def alike(worker: int) -> Any:
            with state.taken_over():
                return compute(worker)

        return list(self._pool.map(alike, range(num_workers)))

    def __getstate__(self) -> dict[str, Any]:
        """A copy starts threads of its own."""
        return self.__dict__ | {"_pool": None}


def _one(rows: Sequence[Row], x_wb: Inputs, loss: LossOfRows | None, worker: int) -> Tensor:
    """One worker's outputs `[b, ...]`, or its loss `[1]`."""
    model = rows[worker].model
    if loss is None:
        return call(model, each(lambda x: x[worker], x_wb))
    return loss(
        lambda x_1b: call(model, each(lambda x: x[0], x_1b)).unsqueeze(0),
        slice(worker, worker + 1),
    )


class _RowsOfAutograd(torch.autograd.Function):
    """One node of the graph for all workers."""

    @staticmethod
    def forward(
        ctx: Any,
        ways: RowByRow,
        rows: Sequence[Row],
        x_wb: Inputs,
        loss: LossOfRows | None,
        *stacked: nn.Parameter,
    ) -> Tensor:
        gradients = _Gradients(rows, stacked)

        def compute(worker: int) -> Tensor:
            with torch.enable_grad():
                result = _one(rows, x_wb, loss, worker)
            if loss is not None:
                gradients.put(worker, result)
            return result if loss is None else result.detach()

        results = ways.each(compute, len(rows))
        ctx.ways, ctx.gradients = ways, gradients
        ctx.results = results if loss is None else None
        if loss is not None:
            return torch.cat(results)
        return torch.stack([result.detach() for result in results])

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, ...]:
        (weights_w,) = grad_outputs
        gradients, results = ctx.gradients, ctx.results
        assert gradients is not None, "workers computed one by one have one backward pass"
        ctx.gradients = ctx.results = None
        if results is None:
            gradients.scale_(weights_w)
        else:

            def compute(worker: int) -> None:
                gradients.put(worker, results[worker], weights_w[worker])
                results[worker] = None

            ctx.ways.each(compute, len(results))
        return None, None, None, None, *gradients.taken()


class _Gradients:
    """The gradients of stacked parameters, row by row."""

    def __init__(self, rows: Sequence[Row], stacked: Sequence[nn.Parameter]) -> None:
        self._rows = rows
        self._stacked = [torch.empty_like(p, requires_grad=False) for p in stacked]
        self._is_used = [False] * len(stacked)

    def put(self, worker: int, result: Tensor, weight: Tensor | None = None) -> None:
        """Those of one worker's result, times `weight`; None: of one number, as it is. Then torch
        imports no sympy, which takes a second, to compare shapes.
        """
        own = torch.autograd.grad(result, self._rows[worker].trained, weight, allow_unused=True)
        for number, (gradient, stacked) in enumerate(zip(own, self._stacked, strict=True)):
            if gradient is None:
                stacked[worker].zero_()
            else:
                stacked[worker].copy_(gradient)
                self._is_used[number] = True

    def scale_(self, weights_w: Tensor) -> None:
        """Multiply each worker's by a number."""
        if not (weights_w == 1).all():
            for gradient in self._stacked:
                gradient.mul_(weights_w.view(-1, *[1] * (gradient.dim() - 1)))

    def taken(self) -> Iterator[Tensor | None]:
        """Those of each parameter; None where no worker has used it. They are gone then."""
        stacked, self._stacked = self._stacked, []
        for is_used, gradient in zip(self._is_used, stacked, strict=True):
            yield gradient if is_used else None


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
