"""What an algorithm keeps is looked through as pickle would keep it."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from bagua_algos.checkpoint import checked, is_portable


@dataclass(eq=False)
class Plain:
    held: Any


@dataclass(eq=False, slots=True)
class Slots:
    held: Any


@dataclass(frozen=True, eq=False, slots=True)
class FrozenSlots:
    held: Any


class Both(Slots):
    """Has slots of its parent, and a `__dict__`."""


KINDS = (Plain, Slots, FrozenSlots, Both, list, tuple, set, frozenset)


def of(kind: type, held: Any) -> Any:
    return kind([held]) if kind.__module__ == "builtins" else kind(held)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_in_a_state_of_any_kind_binds_it_to_its_workers(kind):
    for state in (of(kind, torch.zeros(1)), {"a": [of(kind, torch.zeros(1))]}):
        assert not is_portable(state, workers_agree=True)
    assert is_portable(of(kind, 1.5), workers_agree=True)


@pytest.mark.parametrize("kind", KINDS)
def test_what_no_checkpoint_could_give_back_is_found_in_a_state_of_any_kind(kind, monkeypatch):
    known = [Plain, Slots, FrozenSlots, Both]
    monkeypatch.setattr("bagua_algos.checkpoint.get_safe_globals", lambda: known)
    checked(of(kind, 1.5))
    with pytest.raises(ValueError, match="object_of_a_test is part of an algorithm's state"):
        checked(of(kind, type("object_of_a_test", (), {})()))
