"""What a model keeps in Python, beside tensors and modes, such as a count of its passes."""

import copy
from typing import Any

from torch import nn

_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def take_attributes(model: nn.Module, other: nn.Module) -> None:
    """Give `model` the numbers and texts that `other`, a copy of it, keeps as attributes by now,
    and lists and dictionaries of them.
    """
    for part, its in zip(model.modules(), other.modules(), strict=True):
        own = vars(part)
        for name, value in vars(its).items():
            is_module_s = name in _OF_EVERY_MODULE
            if not is_module_s and _is_plain(value) and own.get(name, _NOTHING) != value:
                own[name] = copy.deepcopy(value)


_NOTHING = object()


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return _is_plain(list(value.items()))
    if isinstance(value, list | tuple | set):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float | complex | str | bytes)
