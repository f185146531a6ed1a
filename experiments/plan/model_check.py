"""A trial of a model: two examples of the task go through it before anything is started.

Shapes: b examples, c classes; [...] is nothing where an example has one label, and its places where
it has one at each of them.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bagua_algos.worker_axis.inputs import call, each
from bagua_algos.worker_axis.models import SingleModel
from bagua_algos.worker_axis.modes import evaluating
from experiments.plan.plan import Plan
from experiments.tasks.base import Batch, TaskData
from host.errors import UserError, first_line

NUM_EXAMPLES = 2


def check_model(plan: Plan, data: TaskData) -> None:
    """Compute the outputs of `plan.model`, on the CPU and in evaluation mode.

    Neither the model nor torch's random generator is changed.

    Raises `UserError` unless the model has something to train and takes the task's inputs, and its
    outputs are [b, ..., c].
    """
    if not any(parameter.requires_grad for parameter in plan.model.parameters()):
        raise UserError(
            f"model={plan.names['model']} has no parameter that requires a gradient, so nothing "
            "would be trained: set requires_grad of those that are to learn"
        )
    # Copies of what is stored: a model may work in place.
    x_wb, y_wb = data.train.batch(np.arange(min(NUM_EXAMPLES, len(data.train)))[None])
    inputs_wb, y_b, num_classes = plan.task.inputs(x_wb), y_wb[0], plan.task.num_classes
    inputs_b = each(lambda x: x[0], inputs_wb)
    model, examples = f"model={plan.names['model']}", f"examples of task={plan.names['task']}"
    try:
        with _trying(plan.model):
            outputs_b = call(plan.model, inputs_b)
    except Exception as error:  # whatever a model raises for what it was not made for
        said = first_line(error).rstrip(".")
        raise UserError(
            f"{model} does not take {examples}, which are {described(inputs_b)} "
            f"({said}): choose a model that does; docs/tasks.md names one for each "
            "task"
        ) from error
    if num_classes is None:
        _check_loss(plan, (inputs_wb, y_wb))
        return
    needed = [*y_b.shape, num_classes]
    if not _is_float(outputs_b) or list(outputs_b.shape) != needed:
        raise UserError(
            f"{model} makes {described(outputs_b)} of {examples}, which needs float {needed}: "
            f"choose a model that has {num_classes} outputs for each label, or give "
            f"+model.num_classes={num_classes}"
        )


def _check_loss(plan: Plan, batch: Batch) -> None:
    """Raise `UserError` unless the task's own loss of one worker is `[1]`, floating."""
    try:
        with _trying(plan.model), warnings.catch_warnings():
            # torch goes on with [b, b] pairs of outputs [b, 1] and labels [b], and warns of it.
            warnings.filterwarnings("error", "Using a target size", UserWarning)
            loss_w = plan.task.loss(SingleModel(plan.model), batch)
    except Exception as error:  # whatever a loss raises for what it was not made for
        said = first_line(error).rstrip(".")
        raise UserError(
            f"the loss of task={plan.names['task']} does not take what model="
            f"{plan.names['model']} makes of its examples ({said}): choose a model "
            "or a loss that fits the labels, or give labels of the outputs' shape"
        ) from error
    if not _is_float(loss_w) or list(loss_w.shape) != [1]:
        raise UserError(
            f"the loss of task={plan.names['task']} is {described(loss_w)} for one worker, and "
            "must be float [1]: return the mean of each worker's examples"
        )


@contextmanager
def _trying(model: nn.Module) -> Iterator[None]:
    """Within, `model` is in evaluation mode; what it draws then, nobody misses afterwards."""
    with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        yield


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def described(value: Any, num_leading: int = 0) -> str:
    """Such as "float32 [2, 1, 28, 28]", "input_ids int64 [2, 128]" or "a tuple"; without so many
    leading dimensions of each tensor.
    """
    if isinstance(value, dict):
        parts = (f"{name} {described(part, num_leading)}" for name, part in value.items())
        return ", ".join(parts)
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape[num_leading:])}"
