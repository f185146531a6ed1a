"""Do the tests of the cost model notice a wrong formula? One operator or constant at a time is made
wrong, and the tests run; a mutant that passes them all is printed.

    python -m tests.mutate                                         all modules of MODULES
    python -m tests.mutate netsim/timeline/patterns.py --jobs 2    one of them
    python -m tests.mutate --share 0.1                             a tenth of the mutants, drawn

A fork for each mutant has the mutated module in place of the file's, which stays as it is. A mutant
whose tests take longer than `LIMIT_S` counts as noticed.
"""

import argparse
import ast
import copy
import importlib.abc
import importlib.util
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

MODULES = [
    f"netsim/timeline/{name}.py"
    for name in (
        *("broadcasts", "connections", "cost", "cost_model", "halving_doubling", "link_sharing"),
        *("link_table", "patterns", "tcp_throughput", "transport"),
    )
]
TESTS = [
    f"tests/netsim/timeline/test_{name}.py"
    for name in (
        *("cost", "cost_model", "halving_doubling", "tcp_throughput", "link_sharing", "link_table"),
        "timeline",
    )
]
SLOW = "not never_faster and not memory_is_linear and not simulated_ones and not thousand"
LIMIT_S = 120

_OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.BitXor: ast.BitOr,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "ceil": "floor"}
_NAMES |= {"mean": "max", "sum": "max"}


class Mutant(NamedTuple):
    """A module with one thing wrong: its tree, and where it is wrong in which way."""

    path: str
    tree: ast.Module
    line: int
    change: str


def mutants(path: str) -> Iterator[Mutant]:
    """One after the other, of a file below the working directory."""
    tree = ast.parse(Path(path).read_text())
    skipped = {id(n) for node in ast.walk(tree) for n in _untold(node)}
    for index, node in enumerate(ast.walk(tree)):
        if id(node) in skipped:
            continue
        for change, apply in _changes(node):
            other = copy.deepcopy(tree)
            apply(list(ast.walk(other))[index])
            line = getattr(node, "lineno", 0)
            yield Mutant(path, ast.fix_missing_locations(other), line, change)


def _untold(node: ast.AST) -> Iterator[ast.AST]:
    """What is no formula: annotations, decorators, and what is said when something is refused."""
    for decorator in getattr(node, "decorator_list", []):
        yield from ast.walk(decorator)
    for part in ("annotation", "returns"):
        if isinstance(found := getattr(node, part, None), ast.AST):
            yield from ast.walk(found)
    if isinstance(node, ast.Raise | ast.Assert):
        yield from ast.walk(node)


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[ast.AST], None]]]:
    operators = [getattr(node, "op", None), *getattr(node, "ops", [])]
    for place, operator in enumerate(o for o in operators if type(o) in _OPERATORS):
        other = _OPERATORS[type(operator)]

        def swap(node: ast.AST, place: int = place, other: type = other) -> None:
            if hasattr(node, "ops"):
                node.ops[place] = other()  # pyright: ignore[reportAttributeAccessIssue]
            else:
                node.op = other()  # pyright: ignore[reportAttributeAccessIssue]

        yield f"{type(operator).__name__} -> {other.__name__}", swap
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        value = not node.value if isinstance(node.value, bool) else _next(node.value)
        yield f"{node.value} -> {value}", lambda node: setattr(node, "value", value)
    for field in ("attr", "id"):
        if (name := getattr(node, field, None)) in _NAMES:
            other_name = _NAMES[name]
            yield (
                f"{name} -> {other_name}",
                lambda node, field=field, other=other_name: setattr(node, field, other),
            )


def _next(value: float) -> float:
    return value + 1 if isinstance(value, int) else 2 * value if value else 1.0


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the mutated module in place of the file's."""

    def __init__(self, mutant: Mutant) -> None:
        self._name = mutant.path.removesuffix(".py").replace("/", ".")
        self._mutant = mutant

    def find_spec(self, fullname, path, target=None):
        if fullname == self._name:
            return importlib.util.spec_from_loader(fullname, self, origin=self._mutant.path)
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._mutant.tree, self._mutant.path, "exec"), module.__dict__)


def is_noticed(mutant: Mutant, tests: Sequence[str]) -> bool:
    """Whether a test fails with the mutant, or does not end."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = min(_run(mutant, tests), 1)
        finally:
            os._exit(code)
    return os.waitpid(pid, 0)[1] != 0


def _run(mutant: Mutant, tests: Sequence[str]) -> int:
    import pytest

    signal.alarm(LIMIT_S)  # its default is to kill
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    sys.meta_path.insert(0, _Finder(mutant))
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-k", SLOW, *tests]))


def main() -> int:
    """The command line; returns the exit code: 0 where all mutants are noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate")
    parser.add_argument("modules", nargs="*", default=MODULES)
    parser.add_argument("--share", type=float, default=1.0, help="of the mutants (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="at the same time")
    options = parser.parse_args()
    import scipy.optimize  # noqa: F401  # once, for all forks
    import torch.distributed  # noqa: F401

    as_it_is = Mutant(MODULES[0], ast.parse(Path(MODULES[0]).read_text()), 0, "none")
    if is_noticed(as_it_is, TESTS):
        parser.exit(2, "The tests fail without any mutant: mend them first.\n")
    chance = random.Random(0)
    drawn = [m for path in options.modules for m in mutants(path)]
    drawn = [m for m in drawn if chance.random() < options.share]
    with ThreadPoolExecutor(options.jobs) as pool:
        survivors = 0
        for mutant, noticed in zip(
            drawn, pool.map(lambda m: is_noticed(m, TESTS), drawn), strict=True
        ):
            if not noticed:
                survivors += 1
                print(f"{mutant.path}:{mutant.line}: {mutant.change}", flush=True)
    print(f"{len(drawn) - survivors} of {len(drawn)} mutants noticed")
    return min(survivors, 1)


if __name__ == "__main__":
    sys.exit(main())
