"""The generators of torch, NumPy and Python, from which models and losses may draw.

A generator of a model's own is not among them: no seed begins it, and no checkpoint holds it.
"""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_NUMPY, _PYTHON, _TORCH = "numpy_generator", "python_generator", "generators"


def begin(seed: int) -> None:
    """Have all of them begin as `seed` says, which is at least 0."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # it takes no more
    random.seed(seed)


def of_torch(device: str) -> list[torch.Generator]:
    """Those that random layers on `device` draw from."""
    on_gpu = device == "cuda"
    return [
        torch.default_generator,
        *([torch.cuda.default_generators[torch.cuda.current_device()]] if on_gpu else []),
    ]


def of_others() -> dict[str, Any]:
    """Where NumPy's and Python's are, in plain numbers."""
    numpy = np.random.get_state(legacy=False)
    key = {name: np.asarray(value).tolist() for name, value in numpy["state"].items()}
    return {_NUMPY: {**numpy, "state": key}, _PYTHON: random.getstate()}


def state_dict(device: str) -> dict[str, Any]:
    """Where all of them are, for a checkpoint."""
    return {_TORCH: [own.get_state() for own in of_torch(device)], **of_others()}


def load_state_dict(state: Mapping[str, Any], device: str) -> None:
    """Have them go on as `state_dict` says; NumPy's and Python's stay where an older checkpoint
    does not tell of them.
    """
    for generator, drawn in zip(of_torch(device), state[_TORCH], strict=True):
        generator.set_state(drawn)
    if _NUMPY in state:
        np.random.set_state(state[_NUMPY])
        random.setstate(state[_PYTHON])
