"""The mutants of a module: its text with one thing wrong, and names for them that last."""

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.mutate.changes import Apply, changes, is_untold, untold_parts


@dataclass(frozen=True)
class Mutant:
    """One thing wrong. Its name holds as long as the function that it is in stays the same."""

    path: str
    function: str
    """Its qualified name; "" outside of functions."""
    line: int
    text: str
    """The line as it is, without its indentation."""
    change: str
    nth: int
    """Of equal changes of equal lines in one function."""
    span: tuple[int, int]
    """The first and the last line of the statement; of one with a body, without that."""
    around: str
    """A digest of the outermost function or class that it is in, or of the module."""

    @property
    def name(self) -> str:
        """What it is called in files, and drawn by."""
        return f"{self.function} | {self.text} | {self.change} | {self.nth}"

    @property
    def chance(self) -> float:
        """From 0 to 1: those below a share are the share's."""
        found = hashlib.sha256(f"{self.path} {self.name}".encode()).digest()
        return int.from_bytes(found[:8], "big") / 2**64

    def source(self) -> str:
        """The whole module, mutated."""
        tree = ast.parse(Path(self.path).read_text())
        for mutant, node, apply in _mutants(self.path, tree):
            if mutant == self:
                _replace(tree, node, apply(node))
                return ast.unparse(ast.fix_missing_locations(tree))
        raise LookupError(self.name)


def mutants(path: str) -> list[Mutant]:
    """All of a file below the working directory."""
    return [mutant for mutant, _, _ in _mutants(path, ast.parse(Path(path).read_text()))]


def _mutants(path: str, tree: ast.Module) -> Iterator[tuple[Mutant, ast.AST, Apply]]:
    lines = Path(path).read_text().splitlines()
    num_told: dict[tuple[str, str, str], int] = {}
    for node, place in _walk(tree, Place("", (1, 1), digest(ast.unparse(tree)))):
        line = getattr(node, "lineno", 1)
        for change, apply in changes(node):
            told = place.function, lines[line - 1].strip(), change
            nth = num_told[told] = num_told.get(told, -1) + 1
            yield Mutant(path, told[0], line, *told[1:], nth, place.span, place.around), node, apply


class Place(NamedTuple):
    """Where a node is: see `Mutant`."""

    function: str
    span: tuple[int, int]
    around: str

    def within(self, node: ast.AST) -> "Place":
        """The place of the parts of `node`."""
        function, span, around = self
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            around = around if function else digest(ast.unparse(node))
            function = f"{function}.{node.name}".lstrip(".")
        if isinstance(node, ast.stmt):
            span = node.lineno, node.end_lineno or node.lineno
            if body := getattr(node, "body", None):
                span = node.lineno, max(node.lineno, body[0].lineno - 1)
        return Place(function, span, around)


def _walk(node: ast.AST, place: Place) -> Iterator[tuple[ast.AST, Place]]:
    """Every node in which something may be changed, and where it is."""
    inner = place.within(node)
    yield node, Place(place.function, inner.span, place.around)
    untold = {id(part) for part in untold_parts(node)}
    for child in ast.iter_child_nodes(node):
        if id(child) not in untold and not is_untold(child):
            yield from _walk(child, inner)


def digest(text: str) -> str:
    """A short one."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _replace(tree: ast.Module, node: ast.AST, other: ast.AST | None) -> None:
    """Put `other` into the place of `node`; nothing is left of a statement without one."""
    other = ast.Pass() if other is None else other
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is node:
                setattr(parent, field, other)
            elif isinstance(value, list):
                value[:] = [other if item is node else item for item in value]
