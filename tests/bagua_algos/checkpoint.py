"""What a checkpoint does, through a file that holds all of it."""

import io
from typing import Protocol

import torch
from torch import nn

from bagua_algos.engine.engine import Engine


class Training(Protocol):
    model: nn.Module
    optimizer: torch.optim.Optimizer
    engine: Engine


def carry_over(stopped: Training, resumed: Training) -> None:
    """Save the state of one training and load it into another."""
    parts = ("model", "optimizer", "engine")
    file = io.BytesIO()
    torch.save({part: getattr(stopped, part).state_dict() for part in parts}, file)
    file.seek(0)
    for part, state in torch.load(file, weights_only=False).items():
        getattr(resumed, part).load_state_dict(state)
