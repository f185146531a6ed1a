"""Models on the worker axis: `[w, batch, ...]` in, `[w, batch, ...]` out, for the w workers of
this process.

One training loop serves both: a real worker's ordinary model (w = 1), and N simulated workers'
models as one `vmap`.
"""

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class SingleModel(nn.Module):
    """The ordinary `model` of one real worker: w = 1. Nothing is copied or changed."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.module = model

    def forward(self, x_wb: Tensor) -> Tensor:
        """`x[1, batch, ...]` -> `[1, batch, ...]`."""
        return self.module(x_wb.squeeze(0)).unsqueeze(0)


class StackedModel(nn.Module):
    """N copies of `model` as one module: parameters and buffers `[N, ...]`, `[N, batch, ...]` in
    and out.

    Parameters have the names of `model` after the prefix `module.`. Dropout draws differently for
    each worker.

    Args:
        model: any that `torch.func.vmap` accepts: no control flow that depends on data.
        num_workers: N.
        in_a_loop: compute one worker after the other, which any model can do.
    """

    def __init__(self, model: nn.Module, num_workers: int, *, in_a_loop: bool = False) -> None:
        super().__init__()
        self.module = copy.deepcopy(model)
        self._in_a_loop = in_a_loop
        tied: dict[Tensor, nn.Parameter] = {}  # a weight used in two places stays one weight
        for part in self.module.modules():
            if isinstance(part, _BatchNorm):
                part.register_forward_pre_hook(_in_float32)
            for name, parameter in part.named_parameters(recurse=False):
                if parameter not in tied:
                    stacked = _stack(parameter.detach(), num_workers)
                    tied[parameter] = nn.Parameter(stacked, parameter.requires_grad)
                setattr(part, name, tied[parameter])
            for name, buffer in part.named_buffers(recurse=False):
                setattr(part, name, _stack(buffer, num_workers))

    def forward(self, x_wb: Tensor) -> Tensor:
        """`x[w, batch, ...]` -> `[w, batch, ...]`, row i by worker i's weights."""
        parameters = dict(self.module.named_parameters())
        buffers = dict(self.module.named_buffers())
        if not self._in_a_loop:
            return torch.func.vmap(self._one, randomness="different")(parameters, buffers, x_wb)
        # By unbind, whose gradient is one stack; an index's would be as large as all workers'.
        parameters = {name: x_w.unbind() for name, x_w in parameters.items()}
        buffers = {name: x_w.unbind() for name, x_w in buffers.items()}
        rows = [
            self._one(_row(parameters, worker), _row(buffers, worker), x_b)
            for worker, x_b in enumerate(x_wb)
        ]
        return torch.stack(rows)

    def _one(
        self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], x_b: Tensor
    ) -> Tensor:
        return torch.func.functional_call(self.module, (dict(parameters), dict(buffers)), (x_b,))


def why_not_stacked(model: nn.Module, x_b: Tensor) -> str | None:
    """What keeps `torch.func.vmap` from computing stacked copies of `model` at once on such inputs;
    None if it can.
    """
    try:
        with torch.no_grad():
            StackedModel(model, 2)(torch.stack([x_b, x_b]))
    except RuntimeError as error:
        return str(error).strip().splitlines()[0]
    return None


def _row(of_workers: Mapping[str, Sequence[Tensor]], worker: int) -> dict[str, Tensor]:
    """One worker's parameters or buffers: views, so what it changes in place stays."""
    return {name: x_w[worker] for name, x_w in of_workers.items()}


def _in_float32(part: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """Under autocast, vmap takes no BatchNorm whose input is narrower than its weights."""
    (x,) = inputs
    return (x.float(),) if torch.is_autocast_enabled(x.device.type) else (x,)


def _stack(x: Tensor, num_workers: int) -> Tensor:
    return x.unsqueeze(0).repeat(num_workers, *[1] * x.dim())
