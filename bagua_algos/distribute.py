"""The one line around an unmodified model and optimizer of one's own training script."""

from contextlib import AbstractContextManager
from typing import TypeVar

import torch
from torch import nn

from bagua_algos.algorithm import Algorithm
from bagua_algos.communicator import Communicator
from bagua_algos.engine import DEFAULT_BUCKET_BYTES, DEFAULT_TIMEOUT_S, Engine
from bagua_algos.process_group import ProcessGroupCommunicator

Model = TypeVar("Model", bound=nn.Module)
Optimizer = TypeVar("Optimizer", bound=torch.optim.Optimizer)

_ENGINES: dict[nn.Module, Engine] = {}


def distribute(
    model: Model,
    optimizer: Optimizer,
    algorithm: Algorithm,
    communicator: Communicator | None = None,
    *,
    bucket_bytes: int = DEFAULT_BUCKET_BYTES,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> tuple[Model, Optimizer]:
    """Train `model` with the other workers by `algorithm`; returns the same model and the same
    optimizer.

    The workers are those of torch's default process group unless a `communicator` is given.
    Raises `ValueError` where that group is not initialised or the model is distributed already.
    """
    if model in _ENGINES:
        raise ValueError("this model is distributed already")
    _ENGINES[model] = Engine(
        model,
        optimizer,
        algorithm,
        communicator or ProcessGroupCommunicator(),
        bucket_bytes=bucket_bytes,
        timeout_s=timeout_s,
    )
    return model, optimizer


def no_sync(model: nn.Module) -> AbstractContextManager[None]:
    """Within, gradients only accumulate locally: for all but the last micro-batch of a step."""
    return _engine(model).no_sync()


def consensus(model: nn.Module) -> AbstractContextManager[float]:
    """Within, the model is the one to evaluate or save: the mean of all workers'. A collective
    call.
    """
    return _engine(model).consensus()


def release(model: nn.Module) -> None:
    """End distributed training: the model and its optimizer are plain again. A collective call."""
    engine = _engine(model)
    del _ENGINES[model]
    try:
        engine.pause()
    finally:
        engine.close()


def _engine(model: nn.Module) -> Engine:
    if model not in _ENGINES:
        raise ValueError("this model is not distributed: call bagua_algos.distribute() first")
    return _ENGINES[model]
