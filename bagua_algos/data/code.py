"""What functions, classes and modules are made of: what their code uses, and whose it is.

Code of one's own counts by all that it names; what an installed package or Python brings by its
file and version.
"""

import dis
import importlib
import importlib.machinery
import importlib.metadata
import inspect
import operator
import os
import sys
import sysconfig
import types
from collections.abc import Iterator
from contextlib import suppress
from functools import WRAPPER_ASSIGNMENTS, cache
from typing import Any

from bagua_algos.data.files import content

_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, tuple)
_NOT_OF_A_CLASS = {
    *("__dict__", "__weakref__", "__doc__", "__annotations__", "__annotate__", "__annotate_func__"),
    *("__annotations_cache__", "__firstlineno__", "__static_attributes__", "__abstractmethods__"),
    *("_abc_impl", "__parameters__", "__orig_bases__", "__slotnames__"),
}


def home(obj: Any) -> types.ModuleType | None:
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


def is_in(module: types.ModuleType | None, name: str, obj: Any) -> bool:
    """Whether `obj` is what stands in the module under its name."""
    with suppress(AttributeError):
        return operator.attrgetter(name)(module) is obj
    return False


def is_compiled(module: types.ModuleType | None) -> bool:
    """Whether its file is a library of machine code."""
    file = getattr(module, "__file__", None) or ""
    return file.endswith(tuple(importlib.machinery.EXTENSION_SUFFIXES))


def is_of_a_file(obj: Any) -> bool:
    """Whether it is no function of other code: of a text that an installed module executes, or of a
    program that it runs, as cProfile does.
    """
    if not isinstance(obj, types.FunctionType):
        return True
    file = obj.__code__.co_filename
    return file.startswith("<frozen ") or _is_path_of_package(file)


def members_of_class(cls: type) -> Iterator[tuple[str, Any]]:
    """Its own attributes and methods, but those by which Python keeps books."""
    for name, member in vars(cls).items():
        is_slot = isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType)
        if name not in _NOT_OF_A_CLASS and not is_slot:
            yield name, member


def members_of_module(module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """Its constants, which may be others than in its file, and the modules that it uses."""
    for name, member in vars(module).items():
        if name.startswith("__"):
            continue
        if type(member) in _CONSTANTS or isinstance(member, types.ModuleType):
            yield name, member
        elif isinstance(member, type) or inspect.isroutine(member):
            named = sys.modules.get(getattr(member, "__module__", None) or "")
            yield name, (named, home(member))


def held(function: types.FunctionType) -> Iterator[Any]:
    """Its code, and what it brings along by itself: defaults, closure, and attributes."""
    yield from (function.__code__, function.__defaults__, function.__kwdefaults__)
    yield from _closure(function)
    yield attributes(function)


def attributes(obj: Any) -> dict[str, Any]:
    """Its own, but those by which `functools.wraps` describes it."""
    own = getattr(obj, "__dict__", {})
    return {name: value for name, value in own.items() if name not in WRAPPER_ASSIGNMENTS}


def _closure(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not bound yet
            yield name, cell.cell_contents


def named_by(code: types.CodeType, names: dict[str, Any]) -> Iterator[tuple[str, Any]]:
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
            yield from named_by(constant, names)


def _followed(value: Any) -> types.ModuleType | None:
    """A module whose attributes count one by one; an installed one counts as a whole."""
    is_own = isinstance(value, types.ModuleType) and not is_installed(value)
    return value if is_own else None


def _imported(name: str, level: int, package: str | None) -> types.ModuleType | None:
    """The module that a function would import; None where it is not there."""
    with suppress(ImportError):
        return importlib.import_module("." * level + name, package)
    return None


@cache
def _roots() -> tuple[str, ...]:
    return tuple({f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib")})


def is_installed(module: types.ModuleType) -> bool:
    """Whether it is of an installed package, or Python's own."""
    file = getattr(module, "__file__", None)
    if file is None:
        return module.__name__ != "__main__"
    return _is_path_of_package(file)


def _is_path_of_package(file: str) -> bool:
    is_package = "site-packages" in file or "dist-packages" in file
    return is_package or file.startswith(_roots())


def source(module: types.ModuleType | None) -> bytes | None:
    """16 bytes that stand for its file; None where there is none."""
    file = getattr(module, "__file__", None) or ""
    with suppress(OSError):
        return content(file)
    return None


@cache
def _version_of(package: str) -> str:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return str(getattr(sys.modules.get(package), "__version__", ""))


def version(module: types.ModuleType) -> str:
    """Of the package that it is of; empty where it has none."""
    return _version_of(module.__name__.partition(".")[0])
