"""What is stored comes back with its type and bits, or is refused; what is damaged is none."""

import pickle
import re
import struct
import zlib
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bagua_algos.data.values import MAGIC, MISSING, decode, encode

KEY = b"k" * 25
LEAVES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    *(st.binary(max_size=9), st.complex_numbers()),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers()), inner, max_size=3),
    ),
    max_leaves=8,
)
DTYPES = [
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]
ARRAYS = [
    np.arange(6, dtype=">i4").reshape(2, 3),
    np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    np.array(["a", "bcd"]),
    np.array([b"x", b"yz"]),
    np.ndarray(2, "<U0"),
    np.array(["2026-11-22", "NaT"], dtype="datetime64[ns]"),
    np.array(3.5),
    np.zeros((0, 3), np.float16),
    np.arange(10)[::-2],
    np.array([1 + 2j]),
]


def same(a: Any, b: Any) -> bool:
    """Of equal types and bits, through and through."""
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b) or (a != a and b != b)
    if isinstance(a, complex):
        return same([a.real, a.imag], [b.real, b.imag])
    return a == b


def again(value: Any, **options: Any) -> Any:
    return decode(KEY, encode(KEY, value, **options), **options)


@given(VALUES)
def test_plain_values(value):
    assert same(again(value), value)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 2), (3, 5)], ids=str)
def test_tensors(dtype, shape):
    x = (torch.rand(shape) * 100 - 20).to(dtype)
    y = again({"x": x})["x"]
    assert y.dtype == dtype and y.shape == x.shape
    assert y.reshape(-1).view(torch.uint8).equal(x.reshape(-1).view(torch.uint8))


def test_views_that_are_not_contiguous_or_conjugate():
    x = torch.arange(12.0).reshape(3, 4).T
    z = torch.complex(torch.ones(2), torch.ones(2)).conj()
    y, w = again((x, z))
    assert y.equal(x) and w.equal(z) and w.imag.eq(-1).all()


@pytest.mark.parametrize("array", ARRAYS, ids=lambda array: f"{array.dtype.str}{array.shape}")
def test_arrays(array):
    found = again([array])[0]
    assert type(found) is np.ndarray and found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


SCALARS: list[Any] = [
    *(np.float32(1.5), np.int64(-3), np.bool_(True), np.str_("é"), np.bytes_(b"a")),
    *(np.str_(""), np.bytes_(b""), np.void(b"")),
]


@pytest.mark.parametrize("scalar", SCALARS, ids=repr)
def test_numpys_scalars(scalar):
    found = again(scalar)
    assert type(found) is type(scalar) and found == scalar


def test_what_comes_back_owns_its_memory_and_can_be_written():
    x, a = again((torch.zeros(3), np.zeros(3)))
    x += 1
    a += 1
    assert x.sum() == 3 and a.sum() == 3


Point = namedtuple("Point", "x y")


class Text(str):
    pass


def with_attribute() -> torch.Tensor:
    x = torch.ones(2)
    vars(x)["scale"] = 0.5
    return x


@pytest.mark.parametrize(
    "value",
    [
        Point(1, 2),
        OrderedDict(a=1),
        {1, 2},
        Text("a"),
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2, requires_grad=True),
        torch.eye(2).to_sparse(),
        torch.empty(2, device="meta"),
        with_attribute(),
        np.array([object()]),
        np.ma.masked_array([1, 2], [True, False]),
        np.zeros(2, [("a", "i4"), ("b", "f4")]),
        np.bytes_(b"a\0"),
        slice(3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_come_back_as_something_else_is_refused(value):
    with pytest.raises(ValueError, match=r"it\['image'\]\[0\] is a .* allow_pickle=True"):
        encode(KEY, {"image": [value]})


@pytest.mark.parametrize(
    ("value", "described"),
    [
        (torch.ones(2, requires_grad=True), "a Tensor on cpu, torch.strided that requires a grad"),
        (torch.empty(2, device="meta"), "a Tensor on meta, torch.strided, which is"),
        (with_attribute(), "a Tensor on cpu, torch.strided with attributes, which is"),
        (np.array([object()]), "a ndarray of object, which is"),
        (np.bytes_(b"a\0"), "a bytes_ of |S2, which is"),
        (slice(3), "a slice, which is"),
    ],
    ids=["gradient", "meta", "attribute", "array", "scalar", "object"],
)
def test_who_is_refused_is_told_what_it_is(value, described):
    with pytest.raises(ValueError, match=f"^it is {re.escape(described)}"):
        encode(KEY, value)


def test_pickle_by_an_explicit_switch():
    assert again({"p": Point(1, [2])}, allow_pickle=True) == {"p": Point(1, [2])}


class Bomb:
    exploded = False

    def __reduce__(self) -> Any:
        return explode, ()


def explode() -> int:
    Bomb.exploded = True
    return 0


def test_no_strangers_pickle_is_loaded_without_the_switch():
    entry = encode(KEY, [1, Bomb()], allow_pickle=True)
    assert decode(KEY, entry) is MISSING
    assert decode(KEY, pickle.dumps(Bomb())) is MISSING
    assert not Bomb.exploded
    assert decode(KEY, entry, allow_pickle=True) == [1, 0]
    assert Bomb.exploded


@given(VALUES, st.data())
def test_an_entry_that_was_cut_or_has_a_wrong_byte_is_none(value, data):
    entry = encode(KEY, (value, torch.arange(3)))
    cut = data.draw(st.integers(0, len(entry) - 1))
    assert decode(KEY, entry[:cut]) is MISSING
    place, change = data.draw(st.integers(0, len(entry) - 1)), data.draw(st.integers(1, 255))
    wrong = bytearray(entry)
    wrong[place] ^= change
    assert decode(KEY, bytes(wrong)) is MISSING
    assert decode(KEY, entry + b"\0") is MISSING
    assert decode(KEY[:-1] + b"l", entry) is MISSING, "of another key"


@pytest.mark.parametrize(
    "header",
    [
        b'["tensor","float32",[1000000],4]',
        b'["tensor","nn",[1],4]',
        b'["tensor","float32",[1],-4]',
        b'["array","|O",[1],8]',
        b'["array","f4",[7],4]',
        b'["bytes",99999999999]',
        b'["dict",["list",[["list",[]]]],[1]]',
        b'["eval","1"]',
        b"[]",
        b"[" * 2_000,
        b"not json",
    ],
)
def test_a_strangers_header_does_no_harm(header):
    body = header + b"\0" * 16
    checksum = zlib.crc32(body, zlib.crc32(len(header).to_bytes(4, "little"), zlib.crc32(KEY)))
    assert decode(KEY, struct.pack("<4sII", MAGIC, checksum, len(header)) + body) is MISSING


def test_a_tensors_attributes_come_back_by_pickle():
    x = again(with_attribute(), allow_pickle=True)
    assert x.equal(torch.ones(2)) and vars(x) == {"scale": 0.5}
