"""Fingerprints: 16 bytes that stand for a data set and its transform.

Two are equal only if all is that examples are made of. An object counts by what pickle would keep
of it, a function or class by its code, its attributes, and the globals, closures and modules that
the code uses, an array by its elements. A file that a string, bytes or a `Path` names, alone or in
an array, counts by its size and its time of change; a folder by those of all files in it and in
folders below. A word without a separator names a folder only where it is an attribute of an object:
any text may have such words. A folder that code names, as a constant, a global or an attribute of a
class, counts by its own alone.
What an installed package or Python brings counts by its file and version, and its functions also by
their defaults and closures, which may hold code of others. Compiled code counts by the whole file.
What pickle cannot keep, such as an open file, is refused: it could change unseen.
"""

import copyreg
import hashlib
import os
import pickle
import stat
import sys
import types
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

from bagua_algos.data.code import (
    attributes,
    held,
    home,
    is_compiled,
    is_in,
    is_installed,
    is_of_a_file,
    members_of_class,
    members_of_module,
    named_by,
    source,
    version,
)
from bagua_algos.data.files import folder

_FORM = "7"
"""Another one wherever this module reads objects otherwise."""
_LONGEST_PATH = 4096
_PATH = type(Path())
_PLAIN_ARRAYS = (np.ndarray, np.memmap)
_OF_CODE = (
    *("co_name", "co_flags", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_code"),
    *("co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_exceptiontable"),
)


def fingerprint(value: Any) -> bytes:
    """16 bytes that stand for `value`, such as a data set.

    Raises:
        ValueError: a part of it cannot be known.
    """
    try:
        return _digest(value, {}, _Disk())
    except Exception as error:
        raise ValueError(
            f"the data set has a part in which changes cannot be seen ({error}): leave it out of "
            "what pickle keeps (__getstate__), or give fingerprint=..., and another one whenever "
            "the data or the transform change"
        ) from error


class _Disk:
    """What was found there; it is looked at once."""

    def __init__(self) -> None:
        self.folders: dict[str, bytes] = {}

    @cached_property
    def names(self) -> frozenset[str]:
        """Of the files and folders in the working folder."""
        try:
            return frozenset(os.listdir())
        except OSError:
            return frozenset()


def _digest(value: Any, seen: dict[int, Any], disk: _Disk | None) -> bytes:
    try:
        return _Describer(seen, disk, is_fast=True).digest(value)
    except (ValueError, RecursionError):  # an object that holds itself
        return _Describer(seen, disk, is_fast=False).digest(value)


class _Hash:
    """A file that only remembers a digest of what was written."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=16)

    def write(self, part: bytes) -> None:
        self.digest.update(part)


class _Describer(pickle.Pickler):
    """Pickles into a digest. What pickle knows by name alone is replaced by what it is made of.

    Args:
        seen: functions and classes that were read before, by id.
        disk: of data. None, of code: folders count by their own size and time of change, and words
            without a separator are no paths.
        is_fast: equal objects count the same, whether or not they are one object; none may hold
            itself.
    """

    def __init__(self, seen: dict[int, Any], disk: _Disk | None, *, is_fast: bool) -> None:
        self._file = _Hash()
        super().__init__(self._file, protocol=4)
        self.fast = is_fast
        self._seen, self._disk = dict(seen), disk

    def digest(self, value: Any) -> bytes:
        self.dump((_FORM, sys.version_info[:2], value))
        return self._file.digest.digest()

    def persistent_id(self, obj: Any) -> Any:
        """What stands for `obj`; None: pickle's own way."""
        match obj:
            case np.flexible():
                return "scalar", type(obj), np.asarray(obj)
            case str() | bytes() if type(obj) in (str, bytes):
                return self._path(obj)
            case str() | bytes() | int() | float() | tuple() | list() | dict():
                return None
            case np.ndarray() if type(obj) not in _PLAIN_ARRAYS:  # pickle may leave out attributes
                state = getattr(obj, "__dict__", None)
                return "array", obj.__reduce_ex__(4), state, _words(np.asarray(obj))
            case np.ndarray() if not obj.dtype.hasobject:
                elements = np.ascontiguousarray(obj).reshape(-1).view(np.uint8)
                return "array", obj.dtype.descr, obj.shape, _hashed(elements), _words(obj)
            case torch.Tensor():
                form = f"{obj.dtype} {tuple(obj.shape)} {obj.layout}"
                return "tensor", type(obj), form, _hashed(_elements(obj)), vars(obj)
            case set() | frozenset():
                parts = sorted(_digest(part, self._seen, self._disk) for part in obj)
                return "set", type(obj), parts, attributes(obj)
            case PurePath() if type(obj) is not _PATH:
                return "path", type(obj), attributes(obj), Path(obj)
            case PurePath():
                return repr((obj, self._state_of(str(obj))))
            case types.MethodType():
                return "method", obj.__func__, obj.__self__
            case types.ModuleType() | type() | types.FunctionType():
                return self._once(obj)
            case types.CodeType():
                return "code", _digest([getattr(obj, name) for name in _OF_CODE], {}, None)
            case staticmethod() | classmethod():
                return type(obj), obj.__func__, attributes(obj)
            case property():
                return type(obj), obj.fget, obj.fset, obj.fdel, attributes(obj)
            case cached_property():
                return type(obj), obj.func, attributes(obj) | {"lock": None}  # until Python 3.11
            case types.MappingProxyType():
                return "mapping", dict(obj)
            case _:
                return _arrow(obj)

    def reducer_override(self, obj: Any) -> Any:
        """Pickle's own way, but for what it would keep by name."""
        registered = copyreg.dispatch_table.get(type(obj))
        reduced = obj.__reduce_ex__(4) if registered is None else registered(obj)
        if not isinstance(reduced, str):
            return (*reduced[:2], *map(self._located, reduced[2:3]), *reduced[3:])
        if hasattr(obj, "__wrapped__"):  # such as a function with functools.cache
            return _wrapped, (type(obj).__qualname__, obj.__wrapped__, attributes(obj))
        if not is_installed(sys.modules[type(obj).__module__]):
            raise pickle.PicklingError(f"{obj!r} is known by its name alone")
        if callable(obj) and is_in(module := home(obj), reduced, obj):  # compiled
            return _wrapped, (module, reduced)
        return reduced

    def _path(self, text: str | bytes) -> str | None:
        """What stands for a text that is a path; None: it is none."""
        if len(text) > _LONGEST_PATH:
            return None
        path = os.fsdecode(text)
        found = self._state_of(path) if self._is_path(path) else None
        return None if found is None else repr((text, found))

    def _state_of(self, path: str) -> Any:
        """Size and time of change in ns of the file that `path` names, or what stands for a folder;
        None where there is none.
        """
        if len(path) > _LONGEST_PATH:
            return None
        try:
            found = os.stat(path)
        except (OSError, ValueError):
            return None
        is_folder = stat.S_ISDIR(found.st_mode) and path.strip("./")  # a text's "/" is no data
        if not is_folder or self._disk is None:
            return found.st_size, found.st_mtime_ns
        if path not in self._disk.folders:
            self._disk.folders[path] = folder(path)
        return self._disk.folders[path]

    def _is_path(self, text: str) -> bool:
        """Whether it has a separator, or is the name of a file in the working folder."""
        return os.sep in text or (self._is_beside(text) and os.path.isfile(text))

    def _is_beside(self, name: str) -> bool:
        """Whether the working folder has something of that name."""
        return self._disk is not None and name in self._disk.names

    def _located(self, state: Any) -> Any:
        """An object's state, whose attributes that are names of folders are paths, too."""
        match state:
            case str() | bytes() if self._is_beside(path := os.fsdecode(state)):
                return (state, Path(path)) if os.path.isdir(path) else state
            case dict():
                return {
                    name: self._located(value) if isinstance(value, str | bytes) else value
                    for name, value in state.items()
                }
            case tuple() | list():  # with slots, or what __getstate__ has made
                return type(state), list(map(self._located, state))
            case _:
                return state

    def _once(self, obj: Any) -> Any:
        if id(obj) in self._seen:
            return "again", list(self._seen).index(id(obj))
        self._seen[id(obj)] = obj
        module, name = home(obj), getattr(obj, "__qualname__", "")
        if module is not None and is_installed(module) and is_of_a_file(obj):
            brought = list(held(obj)) if isinstance(obj, types.FunctionType) else []
            return "installed", module.__name__, name, source(module), version(module), brought
        if isinstance(obj, types.ModuleType):
            return "module", obj.__name__, source(obj), list(_of_code(members_of_module(obj)))
        if isinstance(obj, types.FunctionType):
            found = named_by(obj.__code__, obj.__globals__)
            return "function", [*held(obj), *_of_code(found)]
        compiled = source(module) if is_compiled(module) else None
        kin = type(obj), obj.__bases__
        return "class", name, compiled, kin, list(_of_code(members_of_class(obj)))


def _of_code(found: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """What code names; of folders their own size and time alone."""
    for name, value in found:
        is_path = type(value) in (str, bytes, _PATH)
        yield name, _digest(value, {}, None) if is_path else value


def _wrapped(*parts: Any) -> Any:
    """Stands in a digest for an object that wraps a function."""
    return parts


def _words(array: np.ndarray) -> list[Any]:
    """The strings and bytes in it, any of which may be a path."""
    if array.dtype.names is not None:
        return [_words(array[name]) for name in array.dtype.names]
    return array.ravel().tolist() if array.dtype.kind in "US" else []


def _arrow(obj: Any) -> Any:
    """What stands for an array of pyarrow with strings, as columns of pandas are, too: pickle would
    keep them as one piece of memory. None: it is none.
    """
    arrow = sys.modules.get("pyarrow")
    if arrow is None or not isinstance(obj, arrow.Array) or "string" not in str(obj.type):
        return None
    return "array", obj.__reduce_ex__(4), obj.to_pylist()


def _elements(tensor: torch.Tensor) -> np.ndarray:
    dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
    flat = dense.cpu().contiguous().resolve_conj().resolve_neg().reshape(-1)
    return flat.view(torch.uint8).numpy()


def _hashed(content: Any) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
