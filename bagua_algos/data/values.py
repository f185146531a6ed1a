"""Examples as bytes and back, without pickle.

    entry   = "RLX1", crc32 of key and rest, length of header, header, buffers
    header  = JSON: a tree of what the example holds
    buffers = the elements of its tensors and arrays, in the order of the tree

Kept with their exact types: None, bool, int, float, complex, str, bytes, dense CPU tensors, NumPy's
arrays and scalars, and lists, tuples and dicts of all these. Anything else is refused, unless
pickle is allowed. An entry that was cut, or belongs to another key, is none.
"""

import json
import pickle
import struct
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

MAGIC = b"RLX1"
_HEAD = struct.Struct("<4sII")
_AS_JSON = (type(None), bool, int, float, str)


def encode(key: bytes, value: Any, *, allow_pickle: bool = False) -> bytes:
    """The entry of `value` under `key`. Raises `ValueError` for what needs pickle."""
    buffers: list[bytes] = []
    tree = _Writer(buffers, allow_pickle).node(value, "it")
    header = json.dumps(tree, separators=(",", ":")).encode()
    body = b"".join([header, *buffers])
    head = _HEAD.pack(MAGIC, _checksum(key, len(header), body), len(header))
    return head + body


def decode(key: bytes, entry: bytes, *, allow_pickle: bool = False) -> Any:
    """The value of an entry, or `MISSING` where it is damaged, not of `key`, or needs a pickle that
    is not allowed. Its tensors and arrays own their memory and can be written.
    """
    if len(entry) < _HEAD.size:
        return MISSING
    magic, checksum, header_size = _HEAD.unpack_from(entry)
    body = memoryview(entry)[_HEAD.size :]
    if magic != MAGIC or checksum != _checksum(key, header_size, body):
        return MISSING
    try:
        tree = json.loads(bytes(body[:header_size]))
        return _Reader(body[header_size:], allow_pickle).value(tree)
    except Exception:  # a stranger wrote it, or classes have changed since it was pickled
        return MISSING


class _Missing:
    def __repr__(self) -> str:
        return "MISSING"


MISSING: Any = _Missing()
"""What `decode` returns for an entry that holds no value."""


class _NotAllowed(Exception):
    pass


def _checksum(key: bytes, header_size: int, body: bytes | memoryview) -> int:
    return zlib.crc32(body, zlib.crc32(header_size.to_bytes(4, "little"), zlib.crc32(key)))


class _Writer:
    """Makes nodes of values and collects their buffers."""

    def __init__(self, buffers: list[bytes], allow_pickle: bool) -> None:
        self._buffers = buffers
        self._allow_pickle = allow_pickle

    def node(self, value: Any, place: str) -> Any:
        """What JSON knows is itself; anything else `[kind, ...]`."""
        kind = type(value)
        if kind in _AS_JSON:
            return value
        if kind is Tensor and _is_plain(value):
            return self._tensor(value)
        if kind is np.ndarray or isinstance(value, np.generic):
            return self._array(value, place)
        if kind in (list, tuple):
            parts = [self.node(part, f"{place}[{i}]") for i, part in enumerate(value)]
            return [kind.__name__, parts]
        if kind is dict:
            keys = self.node(list(value), f"the keys of {place}")
            parts = [self.node(part, f"{place}[{key!r}]") for key, part in value.items()]
            return ["dict", keys, parts]
        if kind is complex:
            return ["complex", value.real, value.imag]
        if kind is bytes:
            return ["bytes", self._keep(value)]
        return self._pickled(value, place)

    def _tensor(self, value: Tensor) -> Any:
        elements = value.contiguous().resolve_conj().resolve_neg().reshape(-1).view(torch.uint8)
        name = str(value.dtype).removeprefix("torch.")
        return ["tensor", name, list(value.shape), self._keep(elements.numpy().tobytes())]

    def _array(self, value: np.ndarray | np.generic, place: str) -> Any:
        name = value.dtype.str
        elements = value.tobytes()[: value.nbytes]  # of an empty string NumPy gives a zero
        if value.dtype.hasobject or np.dtype(name) != value.dtype:
            return self._pickled(value, place)
        if isinstance(value, np.ndarray):
            return ["array", name, list(value.shape), self._keep(elements)]
        if isinstance(value, np.flexible) and value != np.ndarray((), name, elements)[()]:
            return self._pickled(value, place)  # a string that ends with zeros, which arrays drop
        return ["scalar", name, [], self._keep(elements)]

    def _pickled(self, value: Any, place: str) -> Any:
        if not self._allow_pickle:
            raise ValueError(
                f"{place} is {_described(value)}, which is kept by pickle alone: make it tensors, "
                "arrays, numbers, strings, bytes, lists, tuples or dicts of these, or give "
                "allow_pickle=True if you trust everybody who can write to the cache"
            )
        return ["pickle", self._keep(pickle.dumps(value))]

    def _keep(self, buffer: bytes) -> int:
        self._buffers.append(buffer)
        return len(buffer)


class _Reader:
    """Makes values of nodes, with the buffers one after the other."""

    def __init__(self, buffers: memoryview, allow_pickle: bool) -> None:
        self._buffers = buffers
        self._start = 0
        self._allow_pickle = allow_pickle

    def value(self, node: Any) -> Any:
        if not isinstance(node, list):
            return node
        match node:
            case ["tensor", name, shape, size]:
                return self._tensor(getattr(torch, name), shape, size)
            case ["array", name, shape, size]:
                return self._array(name, shape, size)
            case ["scalar", name, [], size]:
                return self._array(name, [], size)[()]
            case ["list", parts]:
                return [self.value(part) for part in parts]
            case ["tuple", parts]:
                return tuple(self.value(part) for part in parts)
            case ["dict", keys, parts]:
                found = self.value(keys)
                return dict(zip(found, [self.value(part) for part in parts], strict=True))
            case ["complex", real, imag]:
                return complex(real, imag)
            case ["bytes", size]:
                return bytes(self._next(size))
            case ["pickle", size] if self._allow_pickle:
                return pickle.loads(self._next(size))
            case _:
                raise _NotAllowed

    def _tensor(self, dtype: torch.dtype, shape: list[int], size: int) -> Tensor:
        if not isinstance(dtype, torch.dtype):
            raise _NotAllowed
        elements = torch.from_numpy(np.frombuffer(bytearray(self._next(size)), np.uint8))
        return elements.view(dtype).reshape(shape)

    def _array(self, name: str, shape: list[int], size: int) -> np.ndarray:
        dtype = np.dtype(name)
        if dtype.hasobject:
            raise _NotAllowed
        found = np.ndarray(shape, dtype, bytearray(self._next(size)))  # also of empty elements
        if found.nbytes != size:
            raise _NotAllowed
        return found

    def _next(self, size: int) -> memoryview:
        start, self._start = self._start, self._start + size
        if not 0 <= start <= self._start <= len(self._buffers):
            raise _NotAllowed
        return self._buffers[start : self._start]


def _is_plain(value: Tensor) -> bool:
    """Dense, on the CPU, outside autograd, and without attributes: all that bytes bring back."""
    return (
        value.layout is torch.strided
        and value.device.type == "cpu"
        and not value.requires_grad
        and not value.is_quantized
        and not vars(value)
    )


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        grad = " that requires a gradient" if value.requires_grad else ""
        more = " with attributes" if vars(value) else ""
        return f"a {type(value).__name__} on {value.device}, {value.layout}{grad}{more}"
    if isinstance(value, np.ndarray | np.generic):
        return f"a {type(value).__name__} of {value.dtype}"
    return f"a {type(value).__name__}"
