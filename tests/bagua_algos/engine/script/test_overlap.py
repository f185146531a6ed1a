"""Which tensors have an element in common: held to a search through all of their elements."""

import itertools

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bagua_algos.engine.script.own_storage import find_overlap, has_memory, lies_in

WHOLE = 60


@st.composite
def views(draw: st.DrawFn) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Start, shape and strides in a tensor of so many elements, of which none is there twice."""
    shape = tuple(draw(st.lists(st.integers(0, 3), min_size=0, max_size=2)))
    strides = tuple(draw(st.integers(1, 4)) for _ in shape)
    if len(set(places(0, shape, strides))) < torch.Size(shape).numel():
        strides = (shape[1] * strides[1], strides[1])
    return draw(st.integers(0, 20)), shape, strides


def places(start: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    """Of all elements."""
    every = itertools.product(*map(range, shape))
    return [start + sum(i * s for i, s in zip(index, strides, strict=True)) for index in every]


@given(st.lists(views(), max_size=3), st.lists(views(), max_size=3))
def test_an_element_of_two_tensors_is_found(these, others):
    whole, elsewhere = torch.zeros(WHOLE), torch.zeros(WHOLE)
    own = [whole.as_strided(shape, strides, start) for start, shape, strides in these]
    rest = [whole.as_strided(shape, strides, start) for start, shape, strides in others]
    elements = [set(places(*view)) for view in (*these, *others)]
    every = [*own, *rest]
    meeting = {
        (i, j)
        for i in range(len(own))
        for j in range(len(every))
        if i != j and elements[i] & elements[j]
    }
    found = find_overlap(own, [*rest, elsewhere])
    if found is None:
        assert not meeting
    else:
        place = {id(x): index for index, x in enumerate(every)}
        assert (place[id(found[0])], place[id(found[1])]) in meeting


def test_the_one_that_begins_before_others_and_ends_after_them_is_found():
    whole = torch.zeros(8)
    first, between, around = whole[0:2], whole[3:5], whole[1:6]
    found = find_overlap([first], [between, around])
    assert found is not None and found[0] is first and found[1] is around
    assert find_overlap([first], [between, whole[2:6]]) is None


def test_a_byte_within_an_element_is_found():
    """Also in a tensor with gaps, of which no element begins there."""
    whole = torch.zeros(3, 4)
    columns, byte = whole[:, ::2], whole.view(torch.uint8)[0, 1]
    for one, other in ((columns, byte), (byte, columns)):
        found = find_overlap([one], [other])
        assert found is not None and found[0] is one and found[1] is other


class OnGpu(torch.Tensor):
    @property
    def device(self):
        return torch.device("cuda", 0)


def test_tensors_on_two_devices_may_have_the_same_addresses():
    whole = torch.zeros(8)
    there = whole[2:6].as_subclass(OnGpu)
    assert find_overlap([whole], [there]) is None and find_overlap([there], [whole]) is None
    found = find_overlap([there], [whole[3:4].as_subclass(OnGpu)])
    assert found is not None and found[0] is there


def test_a_tensor_without_addresses_has_no_memory_and_meets_none():
    whole = torch.zeros(4)
    without: list[Tensor] = [whole[:0], torch.zeros(4, device="meta"), torch.zeros(4).to_sparse()]
    assert [has_memory(x) for x in (*without, whole[:1], whole)] == [False] * 3 + [True] * 2
    assert find_overlap([whole, *without], without) is None
    assert find_overlap([whole[1:3]], without) is None


def test_where_a_tensor_begins_says_in_which_one_it_lies():
    whole = torch.zeros(12)
    flat = whole[4:8]
    lying = [lies_in(whole[start : start + 1], flat) for start in range(12)]
    assert lying == [4 <= start < 8 for start in range(12)]
    columns = whole.view(3, 4)[:, :2]
    assert [lies_in(whole[start:], columns) for start in (0, 9, 10, 11)] == [True] * 2 + [False] * 2
