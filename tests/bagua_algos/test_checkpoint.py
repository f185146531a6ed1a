"""What an algorithm keeps is looked through as pickle would keep it."""

import io
from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from bagua_algos.algorithms.sgp import PushSum
from bagua_algos.checkpoint import (
    check_belongs,
    check_whole,
    checked,
    is_portable,
    tensors_in,
)


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


@pytest.mark.parametrize(
    "state",
    [
        *(None, 1, 1.5, "words", b"bytes", {1, 2}, {"a": [(1, True)]}, torch.zeros(2)),
        *(torch.float32, torch.device("cpu"), torch.Size([2]), OrderedDict(a=1), Counter("ab")),
        PushSum(numerators=[torch.ones(2)], denominators=torch.ones(3), num_mixings=7),
    ],
)
def test_what_may_be_kept_comes_back_from_a_file_that_nobody_trusts(state):
    assert checked(state) is state
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert type(loaded) is type(state)
    pairs = zip(tensors_in(loaded), tensors_in(state), strict=True)
    assert all(torch.equal(ours, expected) for ours, expected in pairs)
    assert isinstance(state, torch.Tensor | PushSum) or loaded == state


def test_all_tensors_are_found_in_their_order():
    parts = [torch.tensor(float(i)) for i in range(5)]
    nested = {"a": parts[0], "b": [parts[1], (Plain(parts[2]), 1.5)], "c": Slots([parts[3]])}
    found = list(tensors_in([nested, Plain({"d": parts[4]})]))
    assert [x.item() for x in found] == [0, 1, 2, 3, 4]


def test_a_file_without_checksums_is_whole_where_torch_is_told_to_write_none(tmp_path):
    file = tmp_path / "state.pt"
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"x": torch.ones(3)}, file)
        check_whole(file)
    finally:
        torch.serialization.set_crc32_options(True)
    with pytest.raises(ValueError, match="has another checksum than it was written with"):
        check_whole(file)


HERE = {"algorithm": "SGP", "layout": [[0, 1]], "number of workers": 4, "rank": [2]}


def refused(state: Any, *, workers_agree: bool, **others: Any) -> str:
    """What is said of a state that is as here but for `others`; "" where it belongs here."""
    try:
        of = {name: value for name, value in (HERE | others).items() if value is not None}
        check_belongs({"state": state, "of": of}, HERE, workers_agree=workers_agree)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("workers_agree", [False, True])
@pytest.mark.parametrize("state", [None, {"count": 3}, [torch.zeros(1)]])
def test_a_state_is_of_its_algorithm_and_of_the_workers_that_it_is_laid_out_for(
    state, workers_agree
):
    is_anybodys = workers_agree and not isinstance(state, list)
    assert refused(state, workers_agree=workers_agree) == ""
    other = refused(state, workers_agree=workers_agree, algorithm="LocalSGD")
    assert other.startswith("this state is of another algorithm: LocalSGD, and here it is SGP; ")
    for what, value, sentence in [
        ("rank", [1], "this state is of another rank: [1], and here it is [2]; "),
        ("layout", None, "this state is of another layout: None, and here it is [[0, 1]]; "),
    ]:
        said = refused(state, workers_agree=workers_agree, **{what: value})
        assert said == "" if is_anybodys else said.startswith(sentence)
