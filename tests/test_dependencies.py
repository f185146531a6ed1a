"""Every package that the code imports is declared, in the list of those who need it."""

import ast
import re
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.paths import ROOT

PACKAGES = (
    *("host", "kernels", "bagua_algos", "bagua_net", "netsim", "experiments", "hydra_plugins"),
)
OWN = {*PACKAGES, "tests", "examples"}
NOT_INSTALLED = {"cupy": "cupy-cuda12x", "ray": "ray"}
"""Imported where they are installed: the extras `cuda12` and `cuda13`, and `ray`."""
TRAINERS = ("lightning", "accelerate", "transformers")


@cache
def declared() -> dict[str, set[str]]:
    """The distributions of each list: "dependencies", and the extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = {"dependencies": project["dependencies"], **project["optional-dependencies"]}
    return {name: {_normalized(line) for line in lines} for name, lines in lists.items()}


def _normalized(requirement: str) -> str:
    match = re.match(r"[\w.-]+", requirement)
    assert match is not None
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def imported(folder: Path) -> dict[str, list[str]]:
    """The third-party packages that files below `folder` import, each with its importers."""
    users: dict[str, list[str]] = {}
    for file in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            for name in _names(node):
                if name not in sys.stdlib_module_names and name not in OWN:
                    users.setdefault(name, []).append(str(file.relative_to(ROOT)))
    return users


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        return [node.module.split(".")[0]]
    return []


def distributions(name: str) -> set[str]:
    """The distributions that bring the package `name`."""
    known = _installed().get(name) or [NOT_INSTALLED.get(name, name)]
    return {_normalized(distribution) for distribution in known}


@cache
def _installed() -> Mapping[str, list[str]]:
    return packages_distributions()


@pytest.mark.parametrize("package", PACKAGES)
def test_what_a_package_imports_is_declared(package):
    everything = set().union(*declared().values()) - declared()["dev"]
    missing = {
        n: f for n, f in imported(ROOT / package).items() if not distributions(n) & everything
    }
    assert not missing, f"add to pyproject.toml: {missing}"


def test_what_tests_import_is_declared():
    everything = set().union(*declared().values())
    users = imported(ROOT / "tests")
    missing = {n: f for n, f in users.items() if not distributions(n) & everything}
    assert not missing, f"add to the extra dev in pyproject.toml: {missing}"


def pins() -> dict[str, str]:
    """The version of each distribution with which the tests run."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {_normalized(name): version for name, version in pairs}


def test_the_docs_name_the_versions_of_trainers():
    text = (ROOT / "docs" / "trainers.md").read_text()
    for name in ("pytorch-lightning", "accelerate", "transformers"):
        assert f"{name} {pins()[name]}" in text


def test_what_is_declared_and_installed_by_the_tests_is_pinned():
    lists = ("dependencies", "data", "report", "text", "tune", *TRAINERS, "dev")
    assert set().union(*(declared()[name] for name in lists)) <= pins().keys()
