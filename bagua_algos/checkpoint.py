"""What algorithms keep, in checkpoints: `torch.load(weights_only=True)` makes no other class."""

from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, TypeVar

from torch import Tensor
from torch.serialization import add_safe_globals

State = TypeVar("State")
ALGORITHM = "algorithm"


def kept(cls: type[State]) -> type[State]:
    """A class of an algorithm's state, which holds tensors, numbers and such classes alone.

    `torch.load` makes objects of it without being told to trust the file, once `bagua_algos` is
    imported.
    """
    add_safe_globals([cls])
    return cls


def check_belongs(state_dict: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raise `ValueError` where a state is not of what `here` says: algorithm, layout, workers.

    A state without tensors, such as a count of steps, belongs to any workers of the algorithm.
    """
    is_portable = not holds_tensors(state_dict["state"])
    for what, own in here.items():
        saved = state_dict["of"].get(what)
        if saved != own and not (is_portable and what != ALGORITHM):
            raise ValueError(
                f"this state is of another {what}: {saved}, and here it is {own}; continue "
                "with the same one, or begin anew without this state"
            )


def holds_tensors(state: Any) -> bool:
    """Whether there is a tensor in an algorithm's state."""
    if isinstance(state, Tensor):
        return True
    if isinstance(state, Mapping):
        return any(map(holds_tensors, state.values()))
    if isinstance(state, list | tuple):
        return any(map(holds_tensors, state))
    return any(map(holds_tensors, vars(state).values())) if is_dataclass(state) else False
