"""Models on the worker axis: `[w, batch, ...]` in, `[w, batch, ...]` out, for the w workers of
this process. What goes in is one tensor, or a dictionary of tensors.

One training loop serves both: a real worker's ordinary model (w = 1), and N simulated workers'
models stacked, which `Stacking` says how to compute.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bagua_algos.worker_axis.inputs import Inputs, call, each
from bagua_algos.worker_axis.parts import InParts, LossOfRows
from bagua_algos.worker_axis.rows import Rows, goes_by_few
from bagua_algos.worker_axis.stacking import Stacking
from bagua_algos.worker_axis.vmapped import by_vmap
from host.errors import first_line


class SingleModel(nn.Module):
    """The ordinary `model` of one real worker: w = 1. Nothing is copied or changed."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model

    def forward(self, x_wb: Inputs) -> Tensor:
        """`x[1, batch, ...]` -> `[1, batch, ...]`."""
        return call(self.module, each(lambda x: x.squeeze(0), x_wb)).unsqueeze(0)


class StackedModel(nn.Module):
    """N copies of `model` as one module: parameters and buffers `[N, ...]`, `[N, batch, ...]` in
    and out.

    Parameters have the names of `model` after the prefix `module.`. Dropout draws differently for
    each worker.

    Args:
        model: for `vmap` any that `torch.func.vmap` accepts: no control flow that depends on data.
        num_workers: N.
        stacking: how the workers are computed; whichever it is, values agree to rounding.

    Raises ValueError for a model that cannot be copied, or whose parameters have hooks.
    """

    def __init__(
        self, model: nn.Module, num_workers: int, *, stacking: Stacking | None = None
    ) -> None:
        super().__init__()
        self.module = _copied(model)
        tied: dict[Tensor, Any] = {}  # a tensor used in two places stays one tensor
        for part in self.module.modules():
            if isinstance(part, _BatchNorm):
                part.register_forward_pre_hook(_in_float32)
            for name, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
                if parameter not in tied:
                    stacked = _stack(parameter.detach(), num_workers)
                    tied[parameter] = nn.Parameter(stacked, parameter.requires_grad)
                setattr(part, name, tied[parameter])
            for name, buffer in part.named_buffers(recurse=False, remove_duplicate=False):
                if buffer not in tied:
                    tied[buffer] = _stack(buffer, num_workers)
                setattr(part, name, tied[buffer])
        self._rows = Rows(self.module)
        self._are_alike = False
        self.stacking = stacking or Stacking()

    @property
    def stacking(self) -> Stacking:
        """How the workers are computed. To set it sets torch's number of threads, too."""
        return self._stacking

    @stacking.setter
    def stacking(self, stacking: Stacking) -> None:
        self._stacking = stacking
        torch.set_num_threads(stacking.threads)
        # No method of its own: memory would be freed only when Python looks for cycles.
        self._in_parts = InParts(self._rows, stacking)

    def forward(self, x_wb: Inputs, loss: LossOfRows | None = None) -> Tensor:
        """`x[w, batch, ...]` -> `[w, batch, ...]`, row i by worker i's weights.

        With `loss`, the losses `[w]` in place of outputs; `loss` gives some workers' model its rows
        of the inputs. What backward passes need to remember may then be there for few workers at a
        time.
        """
        if not self._are_alike:
            return (self._vmap if self._is_vmapped(x_wb, loss) else self._in_parts)(x_wb, loss)
        compute = self._rows.compute_all
        return compute(x_wb) if loss is None else loss(compute, slice(None))

    @contextmanager
    def alike(self) -> Iterator[None]:
        """Within, all workers have the same weights and buffers, as the caller knows, and nobody
        asks for gradients: one model computes the examples of all.
        """
        self._are_alike = True
        try:
            with torch.no_grad():
                yield
        finally:
            self._are_alike = False

    def _is_vmapped(self, x_wb: Inputs, loss: LossOfRows | None) -> bool:
        """Whether autograd is left to itself: with several threads it multiplies the faster, and a
        compiler takes nothing else. Not where few workers at a time save memory.
        """
        is_alone = (loss is None or self._stacking.threads > 1) and not goes_by_few(x_wb)
        return self._stacking.way == "vmap" and (is_alone or torch.compiler.is_compiling())

    def _vmap(self, x_wb: Inputs, loss: LossOfRows | None) -> Tensor:
        compute = partial(by_vmap, self.module)
        return compute(x_wb) if loss is None else loss(compute, slice(None))


def _copied(model: nn.Module) -> nn.Module:
    """Copies of parameters have none of their hooks, and stacked ones would be other hooks'."""
    for name, parameter in model.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise ValueError(
                f"the parameter {name!r} has a hook on its gradient, which simulated workers' "
                "parameters would lack: do without it, or choose real workers (backend=gloo)"
            )
    try:
        return copy.deepcopy(model)
    except Exception as error:
        raise ValueError(
            f"simulated workers compute by copies of the model, and copy.deepcopy of it fails "
            f"({first_line(error)}): make it one that can be copied, or choose real workers "
            "(backend=gloo)"
        ) from error


def _in_float32(part: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """Under autocast, vmap takes no BatchNorm whose input is narrower than its weights."""
    (x,) = inputs
    return (x.float(),) if torch.is_autocast_enabled(x.device.type) else (x,)


def _stack(x: Tensor, num_workers: int) -> Tensor:
    return x.unsqueeze(0).repeat(num_workers, *[1] * x.dim())
