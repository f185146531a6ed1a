"""A model and an optimizer in distributed training: by an algorithm of ours, or by PyTorch."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import singledispatch
from typing import Any, Protocol

import torch
from torch import nn
from torch.amp import GradScaler

from bagua_algos.autotune.make_engine import make_engine, tuning_of
from bagua_algos.autotune.tuner import Tuning
from bagua_algos.communication.communicator import Averager, Communicator
from bagua_algos.engine.algorithm import Algorithm
from bagua_algos.engine.engine import Engine
from bagua_algos.engine.step_observer import StepObserver
from experiments.plan.plan import Plan
from experiments.training.torch_ddp import DistributedTorchDDP, TorchDDP


class Distributed(Protocol):
    """What the training loop asks of it: an `Engine`, or one of PyTorch's own."""

    @property
    def exposed_communication_s(self) -> float:
        """What training waited for communication that compute did not hide."""
        ...

    @exposed_communication_s.setter
    def exposed_communication_s(self, seconds: float) -> None: ...

    @property
    def model(self) -> nn.Module:
        """To be called in place of the model that was given."""
        ...

    def no_sync(self) -> AbstractContextManager[None]:
        """Within, gradients accumulate and do not travel."""
        ...

    def pause(self) -> None:
        """End what goes on beside training; a collective call."""
        ...

    def stand_still(self) -> None:
        """Stop for an evaluation; what goes on beside training is not ended. A collective call."""
        ...

    def consensus(self, averager: Averager | None = None) -> AbstractContextManager[float]:
        """Within, the model is the one to evaluate; yields the workers' spread about it. What is
        averaged travels by `averager`; None: by the communicator. A collective call, after
        `pause` or `stand_still`.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the model's and the optimizer's; after `pause`."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from another's `state_dict`."""
        ...

    def close(self) -> None:
        """The model and the optimizer are plain again."""
        ...


def distribute(
    plan: Plan,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    communicator: Communicator,
    scaler: GradScaler,
    observer: StepObserver | None = None,
) -> Distributed:
    """Hang the plan's algorithm on `model` and `optimizer`; `scaler` will scale the loss, and
    `observer` hears of every step of ours, not of PyTorch's.
    """
    return _hang(plan.algorithm, plan, model, optimizer, communicator, scaler, observer)


def tuning(distributed: Distributed) -> Tuning | None:
    """What autotuning has come to; None without."""
    return tuning_of(distributed) if isinstance(distributed, Engine) else None


@singledispatch
def _hang(
    algorithm: Algorithm,
    plan: Plan,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    communicator: Communicator,
    scaler: GradScaler,
    observer: StepObserver | None,
) -> Distributed:
    return make_engine(
        model,
        optimizer,
        algorithm,
        communicator,
        bucket_bytes=plan.bucket_bytes,
        autotune=plan.autotune,
        # A GPU's host would wait for each look at whether they do.
        agree=algorithm.gradients_agree and plan.backend.device == "cpu",
        timeout_s=2 * plan.cluster.timeout_s,
        grad_scaler=scaler,
        step_observer=observer,
    )


@_hang.register
def _(
    algorithm: TorchDDP,
    plan: Plan,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    communicator: Communicator,
    *others: object,
) -> Distributed:
    return DistributedTorchDDP(model, optimizer, algorithm, communicator)
