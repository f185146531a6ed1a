"""Every package that the code imports is declared, in the list of those who need it."""

import ast
import re
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

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
    return {name: {_normalized(line) for line in lines} for name, lines in lines_of().items()}


@cache
def lines_of() -> dict[str, list[str]]:
    """The requirements of each list, as they are written."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {"dependencies": project["dependencies"], **project["optional-dependencies"]}


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


class Pin(NamedTuple):
    """A line of a file in requirements/, and how many hashes follow it."""

    requirement: Requirement
    num_hashes: int

    @property
    def version(self) -> str:
        (specifier,) = self.requirement.specifier
        assert specifier.operator == "==", self.requirement
        return specifier.version


@cache
def pins(name: str) -> dict[str, list[Pin]]:
    """What requirements/`name`.txt pins. A distribution has a line for each range of Pythons."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    entries = re.split(r"\n(?=\S)", re.sub(r"(?m)^#.*\n", "", text).strip())
    found: dict[str, list[Pin]] = {}
    for entry in entries:
        line, *hashes = entry.split(" \\\n")
        assert all(re.fullmatch(r" +--hash=sha256:[0-9a-f]{64}", h) for h in hashes), entry
        pin = Pin(Requirement(line), len(hashes))
        found.setdefault(_normalized(line), []).append(pin)
    return found


def version(name: str, file: str) -> str:
    """The version that `file` pins for the Python that runs."""
    (pin,) = (
        p for p in pins(file)[name] if not p.requirement.marker or p.requirement.marker.evaluate()
    )
    return pin.version


def test_the_docs_name_the_versions_of_trainers():
    text = (ROOT / "docs" / "trainers.md").read_text()
    for name in ("pytorch-lightning", "accelerate", "transformers"):
        assert f"{name} {version(name, 'extras')}" in text


FILES = {
    "install": ("dependencies", "data", "report", "dev"),
    "extras": ("text", "tune", "tensorboard", "mlflow", "wandb", *TRAINERS),
    "docs": ("docs",),
    "clusters": ("slurm", "ray"),
}
"""The files that `.ci/pin` writes, and what of pyproject.toml each of them has."""


@pytest.mark.parametrize("name", [*FILES, "torch", "torch-cpu", "weights"])
def test_every_requirement_has_hashes(name):
    assert all(pin.num_hashes for lines in pins(name).values() for pin in lines)


@pytest.mark.parametrize(("name", "lists"), FILES.items())
def test_what_is_declared_is_pinned_as_it_is_declared(name, lists):
    requirements = [Requirement(line) for each in lists for line in lines_of()[each]]
    for requirement in requirements:
        file = "torch" if requirement.name == "torch" else name
        for pin in pins(file)[_normalized(requirement.name)]:
            assert requirement.specifier.contains(pin.version), f"{requirement}: call .ci/pin"


def test_all_files_pin_the_same_versions():
    versions: dict[str, set[str]] = {}
    for name in (*FILES, "torch-cpu", "torch"):
        for distribution, lines in pins(name).items():
            told = {pin.version.removesuffix("+cpu") for pin in lines}
            assert versions.setdefault(distribution, told) == told, f"{distribution} in {name}"
