"""Fingerprints: 16 bytes that stand for a data set and its transform.

Two are equal only if all is that examples are made of. An object counts by what pickle would keep
of it, a function or class by its code and by the globals, closures and modules that the code uses,
an array by its elements, and a file that a string or a `Path` names by its size and its time of
change; a folder by those of all files in it and in folders below. A word without a separator names
a folder only where it is an attribute of an object: any text may have such words. A folder that
code names, as a constant, a global or an attribute of a class, counts by its own alone.
What an installed package or Python brings counts by its file and version, and its functions also by
their defaults and closures, which may hold code of others. Compiled code counts by the whole file.
What pickle cannot keep, such as an open file, is refused: it could change unseen.
"""

import copyreg
import dis
import hashlib
import importlib
import importlib.machinery
import importlib.metadata
import inspect
import operator
import os
import pickle
import stat
import sys
import sysconfig
import types
from collections.abc import Iterator
from contextlib import suppress
from functools import cache, cached_property
from pathlib import PurePath
from typing import Any

import numpy as np
import torch

from bagua_algos.data.files import content, folder

_FORM = "6"
"""Another one wherever this module reads objects otherwise."""
_LONGEST_PATH = 4096
_PLAIN_ARRAYS = (np.ndarray, np.memmap)
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, tuple)
_OF_CODE = (
    *("co_name", "co_flags", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_code"),
    *("co_consts", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_exceptiontable"),
)
_NOT_OF_A_CLASS = {
    *("__dict__", "__weakref__", "__doc__", "__annotations__", "__annotate__", "__annotate_func__"),
    *("__annotations_cache__", "__firstlineno__", "__static_attributes__", "__abstractmethods__"),
    *("_abc_impl", "__parameters__", "__orig_bases__", "__slotnames__"),
}


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
            case str():
                found = self._state_of(obj) if self._is_path(obj) else None
                return None if found is None else (b"file", obj.encode(), found)
            case int() | float() | bytes() | tuple() | list() | dict():
                return None
            case np.ndarray() if type(obj) not in _PLAIN_ARRAYS:  # pickle may leave out attributes
                return "array", obj.__reduce_ex__(4), getattr(obj, "__dict__", None)
            case np.ndarray() if not obj.dtype.hasobject:
                elements = np.ascontiguousarray(obj).reshape(-1).view(np.uint8)
                return "array", obj.dtype.descr, obj.shape, _hashed(elements)
            case torch.Tensor():
                form = f"{obj.dtype} {tuple(obj.shape)} {obj.layout}"
                return "tensor", type(obj), form, _hashed(_elements(obj)), vars(obj)
            case set() | frozenset():
                parts = sorted(_digest(part, self._seen, self._disk) for part in obj)
                return "set", type(obj).__name__, parts
            case PurePath():
                return "path", os.fsencode(obj), self._state_of(str(obj))
            case types.ModuleType() | type() | types.FunctionType():
                return self._once(obj)
            case types.CodeType():
                return "code", _digest([getattr(obj, name) for name in _OF_CODE], {}, None)
            case staticmethod() | classmethod():
                return type(obj).__name__, obj.__func__
            case property():
                return "property", obj.fget, obj.fset, obj.fdel
            case cached_property():
                return "property", obj.func
            case types.MappingProxyType():
                return "mapping", dict(obj)
            case _:
                return None

    def reducer_override(self, obj: Any) -> Any:
        """Pickle's own way, but for what it would keep by name."""
        registered = copyreg.dispatch_table.get(type(obj))
        reduced = obj.__reduce_ex__(4) if registered is None else registered(obj)
        if not isinstance(reduced, str):
            return (*reduced[:2], *map(self._located, reduced[2:3]), *reduced[3:])
        if hasattr(obj, "__wrapped__"):  # such as a function with functools.cache
            return _wrapped, (type(obj).__qualname__, obj.__wrapped__)
        if not _is_installed(sys.modules[type(obj).__module__]):
            raise pickle.PicklingError(f"{obj!r} is known by its name alone")
        if callable(obj) and _is_in(module := _home(obj), reduced, obj):  # compiled
            return _wrapped, (module, reduced)
        return reduced

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
            case str() if self._is_beside(state) and os.path.isdir(state):
                return state, PurePath(state)
            case dict():
                return {
                    name: self._located(value) if isinstance(value, str) else value
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
        module, name = _home(obj), getattr(obj, "__qualname__", "")
        if module is not None and _is_installed(module) and _is_of_a_file(obj):
            held = list(_held(obj)) if isinstance(obj, types.FunctionType) else []
            return "installed", module.__name__, name, _source(module), _version(module), held
        if isinstance(obj, types.ModuleType):
            return "module", obj.__name__, _source(obj), list(_of_code(_members_of_module(obj)))
        if isinstance(obj, types.FunctionType):
            found = _globals(obj.__code__, obj.__globals__)
            return "function", [*_held(obj), *_of_code(found)]
        compiled = _source(module) if _is_compiled(module) else None
        return "class", name, compiled, obj.__bases__, list(_of_code(_members_of_class(obj)))


def _home(obj: Any) -> types.ModuleType | None:
    """The module of its code: of a function not `__module__`, which `functools.wraps` copies from
    another.
    """
    match obj:
        case types.ModuleType():
            return obj
        case types.FunctionType():
            return sys.modules.get(obj.__globals__.get("__name__", ""))
        case _:
            return sys.modules.get(getattr(obj, "__module__", None) or "")


def _is_in(module: types.ModuleType | None, name: str, obj: Any) -> bool:
    """Whether `obj` is what stands in the module under its name."""
    with suppress(AttributeError):
        return operator.attrgetter(name)(module) is obj
    return False


def _is_compiled(module: types.ModuleType | None) -> bool:
    file = getattr(module, "__file__", None) or ""
    return file.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))


def _is_of_a_file(obj: Any) -> bool:
    """Whether it is no function of other code: of a text that an installed module executes, or of a
    program that it runs, as cProfile does.
    """
    if not isinstance(obj, types.FunctionType):
        return True
    file = obj.__code__.co_filename
    return file.startswith("<frozen ") or _is_path_of_package(file)


def _of_code(found: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """What code names; of folders their own size and time alone."""
    for name, value in found:
        is_path = isinstance(value, str | PurePath)
        yield name, _digest(value, {}, None) if is_path else value


def _members_of_class(cls: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(cls).items():
        is_slot = isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType)
        if name not in _NOT_OF_A_CLASS and not is_slot:
            yield name, member


def _members_of_module(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """Its constants, which may be others than in its file, and the modules that it uses."""
    for name, member in vars(module).items():
        if name.startswith("__"):
            continue
        if type(member) in _CONSTANTS or isinstance(member, types.ModuleType):
            yield name, member
        elif isinstance(member, type) or inspect.isroutine(member):
            named = sys.modules.get(getattr(member, "__module__", None) or "")
            yield name, (named, _home(member))


def _held(function: types.FunctionType) -> Iterator[Any]:
    """Its code, and what it brings along by itself: defaults and closure."""
    yield from (function.__code__, function.__defaults__, function.__kwdefaults__)
    yield from _closure(function)


def _closure(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not bound yet
            yield name, cell.cell_contents


def _globals(code: types.CodeType, names: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What the code finds outside itself: globals, attributes of modules, imports."""
    module, constants = None, []
    for instruction in dis.get_instructions(code):
        name = instruction.argval
        match instruction.opname:
            case "LOAD_CONST":
                constants.append(name)
            case "LOAD_GLOBAL" | "LOAD_NAME" if name in names:
                module = _followed(names[name])
                if module is None:
                    yield name, names[name]
                continue
            case "LOAD_ATTR" | "LOAD_METHOD" if module is not None:
                found = getattr(module, name, None)
                module = _followed(found)
                if module is None:
                    yield name, found
                continue
            case "EXTENDED_ARG":
                continue
            case "IMPORT_NAME":
                yield name, _imported(name, constants[-2], names.get("__package__"))
        if module is not None:  # it is used as a whole
            yield "", module
            module = None
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals(constant, names)


def _followed(value: Any) -> types.ModuleType | None:
    """A module whose attributes count one by one; an installed one counts as a whole."""
    is_own = isinstance(value, types.ModuleType) and not _is_installed(value)
    return value if is_own else None


def _imported(name: str, level: int, package: str | None) -> types.ModuleType | None:
    """The module that a function would import; None where it is not there."""
    with suppress(ImportError):
        return importlib.import_module("." * level + name, package)
    return None


def _wrapped(*parts: Any) -> Any:
    """Stands in a digest for an object that wraps a function."""
    return parts


@cache
def _roots() -> tuple[str, ...]:
    return tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")})


def _is_installed(module: types.ModuleType) -> bool:
    """Whether it is of an installed package, or Python's own."""
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ != "__main__"
    return _is_path_of_package(file)


def _is_path_of_package(file: str) -> bool:
    is_package = "site-packages" in file or "dist-packages" in file
    return is_package or file.startswith(_roots())


def _source(module: types.ModuleType | None) -> bytes | None:
    file = getattr(module, "__file__", None) or ""
    with suppress(OSError):
        return content(file)
    return None


@cache
def _version_of(package: str) -> str:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return str(getattr(sys.modules.get(package), "__version__", ""))


def _version(module: types.ModuleType) -> str:
    return _version_of(module.__name__.partition(".")[0])


def _elements(tensor: torch.Tensor) -> np.ndarray:
    dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
    flat = dense.cpu().contiguous().resolve_conj().resolve_neg().reshape(-1)
    return flat.view(torch.uint8).numpy()


def _hashed(content: Any) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
