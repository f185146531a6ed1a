"""What is made wrong in a module: one operator, constant, condition or effect at a time."""

import ast
from collections.abc import Callable, Iterator

Apply = Callable[[ast.AST], ast.AST | None]
"""What takes a node's place. None: it is left out."""

Change = tuple[str, Apply]
"""What is changed, in words."""

_OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitXor: ast.BitOr,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
_NAMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "ceil": "floor"}
_NAMES |= {"mean": "max", "sum": "max", "any": "all", "all": "any", "floor": "ceil"}
_NAMES |= {"nanmean": "nanmax", "median": "max", "abs": "float", "round": "float", "sorted": "list"}


def changes(node: ast.AST) -> Iterator[Change]:
    """All of one node; most nodes have none."""
    yield from _operators(node)
    yield from _constants(node)
    yield from _names(node)
    yield from _conditions(node)
    yield from _effects(node)


def is_untold(node: ast.AST) -> bool:
    """Whether nothing in it is changed: told to a reader or to type checkers, or a check."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.keyword):
        return node.arg in ("strict", "stacklevel")  # of zip and of warn
    return isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr)


def untold_parts(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node in which nothing is changed, though it is changed itself."""
    yield from getattr(node, "decorator_list", [])
    for part in ("annotation", "returns"):
        if isinstance(found := getattr(node, part, None), ast.AST):
            yield found


def _operators(node: ast.AST) -> Iterator[Change]:
    if (operator := getattr(node, "op", None)) is not None and type(operator) in _OPERATORS:
        other = _OPERATORS[type(operator)]
        yield f"{_name(operator)} -> {other.__name__}", lambda n: _set(n, "op", other())
    for place, operator in enumerate(getattr(node, "ops", [])):
        if type(operator) in _OPERATORS:
            other = _OPERATORS[type(operator)]
            yield (
                f"{_name(operator)} -> {other.__name__}",
                lambda n, place=place, other=other: _put(n, "ops", place, other()),
            )
    if isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.Not):
            yield "Not left out", lambda n: n.operand  # pyright: ignore
        elif isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
            yield "USub left out", lambda n: n.operand  # pyright: ignore


def _constants(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        value = not node.value if isinstance(node.value, bool) else _next(node.value)
        yield f"{node.value} -> {value}", lambda n: _set(n, "value", value)


def _names(node: ast.AST) -> Iterator[Change]:
    for field in ("attr", "id"):
        if (name := getattr(node, field, None)) in _NAMES:
            other = _NAMES[name]
            yield f"{name} -> {other}", lambda n, field=field, other=other: _set(n, field, other)


def _conditions(node: ast.AST) -> Iterator[Change]:
    """A condition without an operator of its own becomes its contrary."""
    conditions = [getattr(node, "test", None), *getattr(node, "ifs", [])]
    for place, condition in enumerate(conditions):
        if isinstance(condition, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr):
            other = ast.UnaryOp(op=ast.Not(), operand=condition)
            where = ("test", 0) if place == 0 else ("ifs", place - 1)
            yield f"Not {ast.unparse(condition)}", lambda n, o=other, w=where: _put(n, *w, o)


def _effects(node: ast.AST) -> Iterator[Change]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield f"without {_short(node)}", lambda n: None
    if isinstance(node, ast.Assign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
            yield f"without {_short(node)}", lambda n: None
    if isinstance(node, ast.Break):
        yield "Break -> Continue", lambda n: ast.Continue()
    if isinstance(node, ast.Continue):
        yield "Continue -> Break", lambda n: ast.Break()


def _short(node: ast.AST) -> str:
    text = ast.unparse(node).splitlines()[0]
    return text if len(text) <= 60 else f"{text[:57]}..."


def _name(operator: ast.AST) -> str:
    return type(operator).__name__


def _next(value: float) -> float:
    return value + 1 if isinstance(value, int) else 2 * value if value else 1.0


def _set(node: ast.AST, field: str, value: object) -> ast.AST:
    setattr(node, field, value)
    return node


def _put(node: ast.AST, field: str, place: int, value: ast.AST) -> ast.AST:
    held = getattr(node, field)
    if isinstance(held, list):
        held[place] = value
        return node
    return _set(node, field, value)
