"""Models of some of the stacked workers, whose parameters are views of the stacked ones.

Shapes: w workers held by this process, k of them in a part, b examples of each.
"""

import copy
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bagua_algos.worker_axis.attributes import take_attributes
from bagua_algos.worker_axis.buffers import call_with, lent, take_back
from bagua_algos.worker_axis.inputs import Inputs, any_of, call, each, parts
from bagua_algos.worker_axis.modes import modes_of, set_modes
from bagua_algos.worker_axis.vmapped import by_vmap

ModelOfRows = Callable[[Inputs], Tensor]
"""Of some workers: `[k, b, ...]` -> `[k, b, ...]`."""

_Key = tuple[int, int, bool]
"""The workers of a part, from one to before another, and whether they are stacked."""

CHUNK = 1024
"""Examples that are computed at once without gradients: by one model for all workers, or by few
workers' own models, but no fewer than one worker's.
"""


class Part(NamedTuple):
    """Some of the workers: their rows, their model, and its parameters that are trained."""

    rows: slice
    model: nn.Module
    trained: tuple[nn.Parameter, ...]
    is_stacked: bool
    """Whether the model's tensors are `[k, ...]`; else it is the plain model of one worker."""

    @property
    def compute(self) -> ModelOfRows:
        """What the model makes of these workers' inputs."""
        return partial(by_vmap if self.is_stacked else _alone, self.model)


class Rows:
    """Models of parts of the workers, made when first asked for, and anew when the stacked tensors
    have moved, or others of them are trained. What a model changes in place changes the stacked
    tensors, and so does another tensor that it gives a buffer.

    Args:
        module: its parameters and buffers are `[w, ...]`.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._known: dict[_Key, Part] = {}
        self._trains: list[_Key] = []
        self._tensors: list[tuple[int, bool]] = []
        self._modes: list[bool] = []

    def alone(self, num_workers: int) -> list[Part]:
        """Each of the first workers by itself, with a plain model."""
        return self._training([(worker, worker + 1, False) for worker in range(num_workers)])

    def stacked(self, num_workers: int, num_parts: int) -> list[Part]:
        """The first workers in so many parts, of sizes that differ by one at most; in fewer where
        there are fewer workers.
        """
        return self._training(_stacked_keys(num_workers, num_parts))

    def few_at_once(self, x_wb: Inputs, side_by_side: int) -> list[Part]:
        """The workers in parts of which those that are computed side by side have `CHUNK` examples
        together; to be computed without gradients, and its first part to `take_attributes_of`.
        """
        num_workers, num_examples = any_of(x_wb).shape[:2]
        num_parts = ceil(side_by_side * num_workers * num_examples / CHUNK)
        parts = self._parts(_stacked_keys(num_workers, max(side_by_side, num_parts)))
        for part in parts:
            take_attributes(part.model, self._training_models[0])
        return parts

    def take_attributes_of(self, part: Part) -> None:
        """What `few_at_once` has given keeps its attributes in the models that train."""
        for model in self._training_models:
            take_attributes(model, part.model)

    def trained(self) -> list[nn.Parameter]:
        """The stacked parameters that are trained."""
        return [p for p in self._module.parameters() if p.requires_grad]

    def compute_all(self, x_wb: Inputs) -> Tensor:
        """The outputs of all workers by the model of worker 0; without gradients."""
        [first], x_b = self._parts([(0, 1, False)]), each(lambda x: x.flatten(0, 1), x_wb)
        take_attributes(first.model, self._training_models[0])
        outputs_b = torch.cat([_called(first.model, part) for part in parts(x_b, CHUNK)])
        return outputs_b.unflatten(0, any_of(x_wb).shape[:2])

    @property
    def _training_models(self) -> list[nn.Module]:
        """Those that have the latest attributes, the first one worker 0's."""
        return [self._known[key].model for key in self._trains] or [self._module]

    def _training(self, keys: list[_Key]) -> list[Part]:
        self._trains = keys
        return self._parts(keys)

    def _parts(self, keys: list[_Key]) -> list[Part]:
        stacked = [*self._module.parameters(), *self._module.buffers()]
        tensors = [(x.data_ptr(), x.requires_grad) for x in stacked]
        if tensors != self._tensors:
            self._tensors = tensors
            self._known = {key: self._again(key, part) for key, part in self._known.items()}
        modes = modes_of(self._module)
        if modes != self._modes:
            for part in self._known.values():
                set_modes(part.model, modes)
            self._modes = modes
        found = []
        for key in keys:
            if key not in self._known:
                self._known[key] = self._make(*key)
            found.append(self._known[key])
        return found

    def _again(self, key: _Key, before: Part) -> Part:
        part = self._make(*key)
        take_attributes(part.model, before.model)
        return part

    def _make(self, start: int, stop: int, is_stacked: bool) -> Part:
        """A copy of the module, in which rows stand for the stacked tensors."""
        own = slice(start, stop) if is_stacked else start
        rows: dict[int, Any] = {}
        for parameter in self._module.parameters():
            row = nn.Parameter(parameter.detach()[own], parameter.requires_grad)
            rows[id(parameter)] = row
        for buffer in self._module.buffers():
            rows[id(buffer)] = buffer[own]
        model = copy.deepcopy(self._module, rows)
        trained = tuple(p for p in model.parameters() if p.requires_grad)
        return Part(slice(start, stop), model, trained, is_stacked)

    def __getstate__(self) -> dict[str, Any]:
        """A copy makes its own models."""
        fresh = {"_known": {}, "_trains": [], "_tensors": [], "_modes": []}
        return {"_module": self._module, **fresh}


def goes_by_few(x_wb: Inputs) -> bool:
    """Whether few workers are computed at once, to save memory: several have more than `CHUNK`
    examples together, and no gradients are wanted.
    """
    num_workers, num_examples = any_of(x_wb).shape[:2]
    are_many = num_workers > 1 and num_workers * num_examples > CHUNK
    return are_many and not torch.is_grad_enabled()


def _stacked_keys(num_workers: int, num_parts: int) -> list[_Key]:
    count = min(num_parts, num_workers)
    ends = [num_workers * part // count for part in range(count + 1)]
    return [(start, stop, True) for start, stop in pairwise(ends)]


def _alone(model: nn.Module, x_1b: Inputs) -> Tensor:
    return _called(model, each(lambda x: x[0], x_1b)).unsqueeze(0)


def _called(model: nn.Module, x_b: Inputs) -> Tensor:
    """What a model whose buffers are rows makes of a batch `[b, ...]`; they are its rows still."""
    buffers = dict(model.named_buffers())
    if not buffers:
        return call(model, x_b)
    given = lent(buffers)
    y_b, others = call_with(model, {}, given, x_b)
    take_back(buffers, given, others)
    return y_b
