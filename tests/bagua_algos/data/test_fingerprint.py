"""A change of whatever examples are made of changes the fingerprint; nothing else does."""

import functools
import importlib.machinery
import importlib.util
import os
import pickle
import subprocess
import sys
import threading
import types
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import Subset, TensorDataset

from bagua_algos.data.fingerprint import fingerprint
from tests.paths import ROOT

PROGRAM = """
import functools
import numpy as np
import torch
from torch.utils.data import Dataset
import helpers
import helpers as aliased
from helpers import scaled

FACTOR = 2

def outer(x):
    return inner(x) + FACTOR

def inner(x):
    return x * 3

def by_module(x):
    return helpers.scaled(x)

def by_constant(x):
    return x * aliased.SCALE

def by_import(x):
    from helpers import scaled
    return scaled(x)

def by_name(x):
    return scaled(x)

@functools.cache
def remembered(x):
    return x + 3

def decorated(function):
    @functools.wraps(function)
    def wrapper(x):
        return function(x) + 4
    return wrapper

@decorated
def wrapped(x):
    return x - 5

def with_closure(n):
    return lambda x: x + n

class Base:
    def prepare(self, x):
        return x + 6

class Transform(Base):
    size = 7
    def __init__(self):
        self.sizes = {"b", "a", "c"}
    def __call__(self, x):
        return self.prepare(x) * self.size
    @staticmethod
    def helper(x):
        return x // 8
    @property
    def shape(self):
        return 9

class Data(Dataset):
    def __init__(self, transform):
        self.rows = np.arange(12)
        self.transform = transform
    def __getitem__(self, index):
        return self.transform(self.rows[index])

TRANSFORMS = {
    "outer": outer, "by_module": by_module, "by_constant": by_constant, "by_import": by_import,
    "by_name": by_name, "remembered": remembered, "wrapped": wrapped, "closure": with_closure(10),
    "partial": functools.partial(inner, x=11), "object": Transform(), "method": Transform().prepare,
}
"""
HELPERS = """
SCALE = 12

def scaled(x):
    return x * SCALE
"""


TRANSFORMS = (
    *("outer", "by_module", "by_constant", "by_import", "by_name", "remembered", "wrapped"),
    *("closure", "partial", "object", "method"),
)
CHANGES = [
    ("x * 3", "x * 30", {"outer", "partial"}),
    ("FACTOR = 2", "FACTOR = 20", {"outer"}),
    ("x + 3", "x + 30", {"remembered"}),
    ("+ 4", "+ 40", {"wrapped"}),
    ("x - 5", "x - 50", {"wrapped"}),
    ("x + 6", "x + 60", {"object", "method"}),
    ("size = 7", "size = 70", {"object", "method"}),
    ("x // 8", "x // 80", {"object", "method"}),
    ("return 9", "return 90", {"object", "method"}),
    ("(10)", "(100)", {"closure"}),
    ("x=11", "x=110", {"partial"}),
    ("np.arange(12)", "np.arange(13)", set(TRANSFORMS)),
    ("self.rows[index]", "self.rows[-index]", set(TRANSFORMS)),
]
CHANGES_OF_HELPERS = [
    ("SCALE = 12", "SCALE = 120", {"by_module", "by_constant", "by_import", "by_name"}),
    ("x * SCALE", "x + SCALE", {"by_module", "by_import", "by_name"}),
]


@pytest.fixture
def loaded(tmp_path, monkeypatch) -> Callable[..., ModuleType]:
    """Loads the program anew, from files of its own."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def load(program: str = PROGRAM, helpers: str = HELPERS) -> ModuleType:
        (tmp_path / "program.py").write_text(program)
        (tmp_path / "helpers.py").write_text(helpers)
        for name in ("program", "helpers"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        return importlib.import_module("program")

    yield load
    for name in ("program", "helpers"):
        sys.modules.pop(name, None)


def fingerprints(program: ModuleType) -> dict[str, str]:
    """Of the data set with each of the program's transforms."""
    found = {n: fingerprint(program.Data(t)).hex() for n, t in program.TRANSFORMS.items()}
    assert tuple(found) == TRANSFORMS
    return found


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def test_transforms_have_different_fingerprints_and_equal_programs_equal_ones(loaded):
    found = fingerprints(loaded())
    assert len(set(found.values())) == len(TRANSFORMS)
    assert fingerprints(loaded()) == found
    assert fingerprints(loaded("\n\n# moved down\n" + PROGRAM)) == found


@pytest.mark.parametrize(("old", "new", "affected"), CHANGES, ids=[old for old, _, _ in CHANGES])
def test_a_change_of_code_changes_what_uses_it(loaded, old, new, affected):
    before = fingerprints(loaded())
    assert PROGRAM.count(old) == 1
    assert changed(before, fingerprints(loaded(PROGRAM.replace(old, new)))) == affected


@pytest.mark.parametrize(("old", "new", "affected"), CHANGES_OF_HELPERS)
def test_a_change_of_another_module_changes_what_uses_it(loaded, old, new, affected):
    before = fingerprints(loaded())
    after = fingerprints(loaded(helpers=HELPERS.replace(old, new)))
    assert affected <= changed(before, after) <= affected | {"by_import"}


def test_a_constant_that_was_set_while_running_counts(loaded):
    program = loaded()
    before = fingerprints(program)
    program.helpers.SCALE = 13
    program.FACTOR = 3
    affected = {"outer", "by_module", "by_constant", "by_import", "by_name"}
    assert changed(before, fingerprints(program)) == affected


def test_another_process_finds_the_same(loaded, tmp_path):
    """Strings have other hashes there, by which sets are ordered."""
    found = fingerprints(loaded())
    code = (
        "import program, bagua_algos.data.fingerprint as f\n"
        "print(*(f.fingerprint(program.Data(t)).hex() for t in program.TRANSFORMS.values()))"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "5"}
    printed = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert printed.split() == list(found.values())


VALUES: list[Any] = [
    *(0, 1, True, 1.0, "1", b"1", None, (), [], {}, (1,), [1], {1: 2}, {2: 1}, {1}, {2}),
    *({"a": 1, "b": 2}, {"b": 2, "a": 1}, frozenset({1}), range(3), range(4), complex(1, 2)),
    *(np.zeros(2), np.zeros((2, 1)), np.zeros(2, np.float32), np.ones(2), np.float64(0)),
    *(torch.zeros(2), torch.zeros(2, 1), torch.zeros(2, dtype=torch.int32), torch.ones(2)),
    *(torch.zeros(2, dtype=torch.bfloat16), torch.float32, torch.device("cpu"), torch.eye(2)),
    *(torch.eye(2).to_sparse(), np.dtype("f4"), len, max, str.upper, np.add, torch.add, int),
    *(TensorDataset(torch.zeros(3)), TensorDataset(torch.ones(3)), Path("a"), Path("b")),
    *(Subset(TensorDataset(torch.zeros(3)), [0]), Subset(TensorDataset(torch.zeros(3)), [1])),
    *(np.array(["a", None]), np.array(["b", None]), torch.nn.Linear(2, 2), torch.nn.ReLU()),
    *(np.random.default_rng(0), np.random.default_rng(1), functools.partial(max, 1)),
]


def test_different_values_have_different_fingerprints():
    found = [fingerprint(value) for value in VALUES]
    assert len(set(found)) == len(VALUES)
    assert found == [fingerprint(value) for value in VALUES]


FOLDER_IN_CODE = """
from pathlib import Path

ROOT = Path({root!r})
TEXT = {root!r}

def by_constant(x):
    return x, {root!r}

def by_tuple(x):
    return x, ({root!r}, 1)

def by_set(x):
    return x in {{{root!r}, "other"}}

def by_global(x):
    return ROOT / x, TEXT

class Transform:
    root = {root!r}

    def __call__(self, x):
        return self.root, x

ALL = by_constant, by_tuple, by_set, by_global, Transform()
"""


def test_of_a_folder_that_code_names_its_own_time_counts_alone(loaded, tmp_path):
    below = tmp_path / "root" / "below"
    below.mkdir(parents=True)
    program = loaded(program=FOLDER_IN_CODE.format(root=str(below.parent)))
    before, walked = [fingerprint(each) for each in program.ALL], fingerprint([below.parent])
    (below / "log.txt").write_text("1")
    assert [fingerprint(each) for each in program.ALL] == before
    assert fingerprint([below.parent]) != walked
    os.utime(below.parent, ns=(1, 2))
    assert not set(before) & {fingerprint(each) for each in program.ALL}


class Rows(np.ndarray):
    """Has a format, which pickle leaves out."""


class Boxes(torch.Tensor):
    """Has a format."""


def with_format(cls, number):
    x = np.ones(2).view(cls) if cls is Rows else torch.ones(2).as_subclass(cls)
    x.format = number
    return x


@pytest.mark.parametrize(
    "make",
    [
        lambda number: np.ma.masked_array([1.0, 2.0], [number, 1 - number]),
        lambda number: with_format(Rows, number),
        lambda number: with_format(Boxes, number),
        lambda number: with_format(torch.Tensor, number),
        lambda number: torch.ones(2).as_subclass(type("Own", (torch.Tensor,), {"factor": number})),
    ],
    ids=["mask", "array", "subclass", "tensor", "class"],
)
def test_what_arrays_and_tensors_bring_beside_their_elements_counts(make):
    found = [fingerprint(make(number)) for number in (0, 1)]
    assert found[0] != found[1]
    assert [fingerprint(make(number)) for number in (0, 1)] == found


def test_what_a_function_uses_behind_many_other_names_counts(tmp_path):
    """Python's code takes two words to say which name it is, from the 128th or 256th on."""
    helpers = types.ModuleType("helpers")
    helpers.__file__ = str(tmp_path / "helpers.py")
    program, found = {"helpers": helpers}, []
    many = "; ".join(f"x.a{number}" for number in range(300))
    exec(f"def use(x): {many}; return helpers.SCALE", program)
    for scale, unused in ((1, 1), (2, 1), (1, 2)):
        vars(helpers).update(SCALE=scale, unused=unused)
        found.append(fingerprint(program["use"]))
    assert found[0] == found[2] != found[1]


def test_equal_parts_count_the_same_whether_or_not_they_are_one_object():
    part = [1, 2]
    assert fingerprint([part, part]) == fingerprint([[1, 2], [1, 2]])


def test_minor_versions_of_python_count_and_their_patches_do_not(monkeypatch):
    major, minor, patch, *rest = sys.version_info
    found = []
    for version in ((major, minor, patch), (major, minor, patch + 1), (major, minor + 1, 0)):
        with monkeypatch.context() as patched:
            patched.setattr(sys, "version_info", (*version, *rest))
            found.append(fingerprint(1))
    assert found[0] == found[1] != found[2]


class Table:
    """Keeps its memory apart where pickle has a protocol for that, as pyarrow does."""

    def __init__(self, rows: bytes) -> None:
        self.rows = rows

    def __reduce_ex__(self, protocol: int) -> Any:
        return Table, (pickle.PickleBuffer(self.rows) if protocol >= 5 else self.rows,)


def test_memory_that_pickle_could_keep_apart_counts():
    assert fingerprint(Table(b"1")) == fingerprint(Table(b"1")) != fingerprint(Table(b"2"))


def test_cycles_end():
    rows: list[Any] = [1]
    rows.append(rows)
    others: list[Any] = [2]
    others.append(others)
    assert fingerprint(rows) == fingerprint(rows) != fingerprint(others)


def test_what_pickle_leaves_out_does_not_count():
    class WithHandle:
        def __init__(self, handle: object) -> None:
            self.handle = handle

        def __getstate__(self) -> dict[str, Any]:
            return {}

    assert fingerprint(WithHandle(threading.Lock())) == fingerprint(WithHandle(iter("abc")))


@pytest.mark.parametrize("make", [threading.Lock, lambda: (i for i in "abc"), threading.local])
def test_what_could_change_unseen_is_refused(make):
    part = make()
    with pytest.raises(ValueError, match=r"changes cannot be seen \(.*\): .*fingerprint=\.\.\."):
        fingerprint({"transform": lambda x: (x, part)})


def scaled(function, factor):
    @functools.wraps(function)
    def wrapper(x):
        return function(x, dim=0) * factor

    return wrapper


def with_power(power):
    code = F.normalize.__code__
    return types.FunctionType(code, F.normalize.__globals__, argdefs=(power, 1, 1e-12, None))


@pytest.mark.parametrize(
    "make",
    [
        lambda number: scaled(F.normalize, number),
        lambda number: scaled(scaled(F.normalize, number), 1),
        lambda number: torch.vmap(F.normalize, in_dims=number),
        lambda number: torch.no_grad()(lambda x: x * number),
        lambda number: torch.vmap(scaled(F.normalize, number)),
        lambda number: eval(f"lambda x: normalize(x) * {number}", vars(F)),
        with_power,
    ],
    ids=["wrapper", "twice", "closure", "decorator", "both", "text", "defaults"],
)
def test_what_is_ones_own_counts_in_a_function_that_names_a_package(make):
    found = [fingerprint(make(number)) for number in (0, 1)]
    assert len({*found, fingerprint(F.normalize)}) == 3
    assert [fingerprint(make(number)) for number in (0, 1)] == found


def with_attribute(function, number):
    function.number = number
    return function


def of_kind(number):
    """Made by a metaclass that has a number."""
    return type("Kind", (type,), {"number": number})("Made", (), {})()


def with_descriptor(kind, number):
    return type("Own", (), {"part": with_attribute(type("Kind", (kind,), {})(len), number)})()


def method_of(function):
    """A method that the class of its object does not have."""
    return types.MethodType(function, [])


@pytest.mark.parametrize(
    "make",
    [
        lambda number: with_attribute(lambda x: x, number),
        lambda number: with_attribute(scaled(F.normalize, 1), number),
        lambda number: with_attribute(torch.no_grad()(lambda x: x), number),
        lambda number: with_attribute(functools.cache(lambda x: x), number),
        of_kind,
        lambda number: with_attribute(type("Own", (set,), {})((1,)), number),
        lambda number: type("Own", (set,), {"number": number})((1,)),
        lambda number: with_descriptor(property, number),
        lambda number: with_descriptor(functools.cached_property, number),
        lambda number: with_descriptor(staticmethod, number),
        lambda number: method_of(lambda rows: number),
    ],
    ids=[
        *("function", "wrapper", "of a package", "cache", "metaclass", "set", "class of a set"),
        *("property", "cached property", "static method", "method"),
    ],
)
def test_what_is_set_on_a_function_or_class_counts(make):
    found = [fingerprint(make(number)) for number in (0, 1)]
    assert found[0] != found[1]
    assert [fingerprint(make(number)) for number in (0, 1)] == found


def test_a_packages_wrappers_of_one_function_differ():
    assert fingerprint(torch.vmap(F.normalize)) != fingerprint(torch.no_grad()(F.normalize))


def test_a_module_that_wraps_a_packages_function_counts_where_another_imports_it(loaded):
    program = "from helpers import normalize"
    helpers = """
import functools, torch.nn.functional as F
def scaled(function):
    @functools.wraps(function)
    def wrapper(x):
        return function(x) * 2
    return wrapper
normalize = scaled(F.normalize)
"""
    found = [fingerprint(loaded(program, h)) for h in (helpers, helpers.replace("* 2", "* 3"))]
    assert found[0] != found[1]


def test_a_class_counts_the_same_after_an_object_of_it_was_pickled():
    class Point:
        pass

    before = fingerprint(lambda: Point)
    Point().__reduce_ex__(4)  # notes __slotnames__ on the class
    assert fingerprint(lambda: Point) == before


USES = """
import own_ext
from own_ext import calcsize

def by_module(x):
    return own_ext.calcsize(x)

def by_class(x):
    return own_ext.Decoder(x)

def as_a_whole(x):
    return getattr(own_ext, x)

def by_name(x):
    return calcsize(x)

def by_helpers(x):
    import helpers
    return getattr(helpers, x)

ALL = by_module, by_class, as_a_whole, by_name, by_helpers, calcsize, own_ext.Decoder()
"""


@pytest.fixture
def compiled(tmp_path, monkeypatch) -> Path:
    """The file of a stand-in for a compiled module of one's own: a C function and a class."""
    spec = importlib.util.find_spec("_struct")
    built = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(built)
    own = ModuleType("own_ext")
    own.__file__ = str(tmp_path / f"own_ext{importlib.machinery.EXTENSION_SUFFIXES[0]}")
    own.calcsize, own.Decoder = built.calcsize, type("Decoder", (), {"__module__": "own_ext"})
    own.calcsize.__module__ = "own_ext"
    assert sys.modules["_struct"].calcsize.__module__ == "_struct"
    monkeypatch.setitem(sys.modules, "own_ext", own)
    return Path(own.__file__)


def test_compiled_code_of_ones_own_counts_by_its_file(loaded, compiled):
    compiled.write_bytes(b"first")
    program = loaded(USES, helpers="from own_ext import calcsize")
    before = [fingerprint(each) for each in program.ALL]
    assert before == [fingerprint(each) for each in program.ALL]
    compiled.write_bytes(b"another")
    assert not set(before) & {fingerprint(each) for each in program.ALL}


@pytest.mark.parametrize("function", [np.zeros, np.add], ids=["function", "ufunc"])
def test_a_compiled_function_of_a_package_counts_by_its_version(monkeypatch, function):
    before = fingerprint([function])
    monkeypatch.setattr("bagua_algos.data.code._version_of", lambda package: "another")
    assert fingerprint([function]) != before
