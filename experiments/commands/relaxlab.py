"""The commands of relaxlab by one name.

relaxlab run +algo=bytegrad net=slow_tcp        as python -m experiments ...
relaxlab advise task=mnist5k net=slow_tcp       as python -m experiments.advise ...
relaxlab netsim probe net=wan                   as python -m netsim probe ...

Modules of the folder where it is started can be imported, as by `python -m`.
"""

import ast
import difflib
import os
import runpy
import sys
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import experiments
from host import commands
from host.errors import UserError

_PACKAGES = ("netsim", "bagua_net")
_HERE = Path(__file__).parent


def main() -> None:
    """Become the command that the first word names."""
    commands.check_encoding(sys.argv)
    known = programs()
    name, *arguments = sys.argv[1:] or ["--help"]
    if name in ("-h", "--help"):
        print(usage(known))
        return
    if name == "--version":
        print(f"relaxlab {version('relaxlab')}")
        return
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"choose {', '.join(known)}"
        raise UserError(f"relaxlab has no command {name!r}: {hint}")
    sys.argv[1:] = arguments
    commands.name_as({module: f"relaxlab {word}" for word, module in known.items()})
    sys.path.insert(0, os.getcwd())
    commands.end_at_once()  # until that module calls `commands.run`
    runpy.run_module(known[name], run_name="__main__", alter_sys=True)


def programs() -> dict[str, str]:
    """The module of each command."""
    rooms = [file.parent.name for file in sorted(_HERE.parent.glob("*/__main__.py"))]
    own = [
        file.stem
        for folder in ("", "checks", "benches")
        for file in sorted((_HERE / folder).glob("*.py"))
        if file.stem not in ("__init__", "relaxlab")
    ]
    modules = {name: f"{experiments.__name__}.{name}" for name in (*rooms, *own)}
    return {"run": experiments.__name__} | modules | {name: name for name in _PACKAGES}


def usage(known: Mapping[str, str]) -> str:
    """Every command with the first sentence of its module."""
    width = max(map(len, known))
    lines = [f"  {name:<{width}}  {_purpose(module)}" for name, module in known.items()]
    return "\n".join(
        [
            "usage: relaxlab COMMAND ...",
            "       relaxlab COMMAND --help",
            "       relaxlab --version",
            "",
            "commands:",
            *lines,
        ]
    )


def _purpose(module: str) -> str:
    """The first sentence of a program's docstring, which is read without importing it."""
    spec = find_spec(module)
    if spec is not None and spec.submodule_search_locations:
        spec = find_spec(f"{module}.__main__")
    assert spec is not None and spec.origin is not None, module
    text = ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or ""
    sentence = " ".join(text.split("\n\n")[0].split())
    return sentence.partition(": `")[0].partition(". ")[0].rstrip(".:")


def start() -> None:
    """What the script `relaxlab` calls."""
    commands.run(main)


if __name__ == "__main__":
    commands.run(main)
