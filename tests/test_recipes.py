"""Each recipe of CONTRIBUTING.md, followed to the letter in a copy of the tree."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

COPIED = (
    *("host", "kernels", "bagua_algos", "netsim", "experiments", "hydra_plugins", "conf", "tests"),
    *("pyproject.toml", "results/reference/predicted.md"),
)
RECIPES = {  # the files of each, and no others
    "An algorithm": 3,
    "A compressor": 3,
    "A task": 3,
    "A network preset": 1,
    "A section of the report": 2,
}
RUN = ["backend=sim", "workers=4", "model=mlp", "max_steps=20", "eval_every=10"]
# Imports once; each command then runs in a child of its own.
COMMANDS = """
import importlib, json, os, sys
for module in ("experiments.__main__", "experiments.report.__main__"):
    importlib.import_module(module)
from host import commands
for module, words in json.loads(sys.argv[1]):
    print("$", module, *words, flush=True)
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, words
    else:
        sys.argv = [module, *words]
        commands.run(importlib.import_module(module).main)
"""


class Recipe:
    """The files of one recipe: path -> text of its indented block."""

    def __init__(self, title: str) -> None:
        text = (ROOT / "CONTRIBUTING.md").read_text()
        section = text.partition(f"\n### {title}\n")[2].partition("\n### ")[0].partition("\n## ")[0]
        self.files: dict[str, str] = {}
        for item in re.split(r"^\d\. ", section, flags=re.MULTILINE)[1:]:
            paths = [path for path in re.findall(r"`([\w/]+\.(?:py|yaml))`", item)]
            block = re.search(r"(?:^ {7,}\S.*\n|^\n(?=\n* {7}))+", item, re.MULTILINE)
            if block is None:  # a row within the line
                row = re.findall(r"`([^`]+,)`", item)[0]
                self.files[paths[0]] = row
            else:
                self.files[paths[0]] = re.sub(r"^ {7}", "", block[0], flags=re.MULTILINE).strip()

    def apply(self, tree: Path) -> None:
        """Write the new files, and put the rows into the lists that are there."""
        for path, text in self.files.items():
            file = tree / path
            if file.exists():
                self._add_row(file, text)
            else:
                file.write_text(text + "\n")

    def _add_row(self, file: Path, row: str) -> None:
        if "SECTIONS" in file.read_text():
            text = re.sub(
                r"^(from .* import|SECTIONS.* =) \($",
                rf"\g<0>\n    {row}",
                file.read_text(),
                flags=re.M,
            )
            assert text.count(f"    {row}") == 2, f"{file} has no import and no tuple"
            file.write_text(text)
            return
        text = re.sub(r"^(ROWS\b.*[\[{])\n", rf"\1\n    {row}\n", file.read_text(), flags=re.M)
        new = next(path for path in self.files if path.endswith(".py"))
        if match := re.search(r"\b([A-Z]\w+)", row):
            module = new.removesuffix(".py").replace("/", ".")
            line = f"from {module} import {match[1]}\n"
            text = re.sub(r"^(?=from|import)", line, text, count=1, flags=re.MULTILINE)
        assert row in text, f"{file} has no ROWS"
        file.write_text(text)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree, in which each of the five recipes was followed."""
    folder = tmp_path_factory.mktemp("tree")
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, target)
    for title in RECIPES:
        recipe = Recipe(title)
        assert len(recipe.files) == RECIPES[title], recipe.files.keys()
        recipe.apply(folder)
    return folder


def run(tree: Path, *words: str) -> str:
    ended = subprocess.run(
        [sys.executable, *words],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree), "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_what_a_recipe_adds_runs_and_is_in_help_and_table(tree):
    def training(name: str, *words: str) -> tuple[str, list[str]]:
        return "experiments.__main__", [*words, *RUN, f"hydra.run.dir=runs/{name}"]

    commands = [
        ("experiments.__main__", ["--help"]),
        training("algorithm", "+algo=sign_of_sum"),
        training("compressor", "+algo=bytegrad", "algo.compressor=third_bytes"),
        training("task", "+algo=allreduce", "task=bright_rows"),
        training("network", "+algo=allreduce", "net=satellite"),
        ("experiments.commands.compare", ["runs"]),
        ("experiments.report.__main__", ["runs", "--out", "out"]),
    ]
    printed = run(tree, "-c", COMMANDS, json.dumps(commands))
    help_text, *_ = printed.split("$ experiments.__main__ +algo")
    *_, rest = printed.split("$ experiments.commands.compare")
    table, _ = rest.split("$ experiments.report.__main__")
    page = (tree / "out/report.html").read_text()
    news = ("sign_of_sum", "bright_rows", "satellite")
    assert all(word in help_text for word in (*news, "third_bytes"))
    assert all(word in table for word in news), table
    assert all(word in page for word in (*news, "ends with the smallest loss"))
    assert "third_bytes" in (tree / "runs/compressor/config.yaml").read_text()


def test_the_shared_suites_take_what_a_recipe_adds(tree):
    suites = (
        "tests/bagua_algos/algorithms/test_all_algorithms.py",
        "tests/bagua_algos/compressors/test_compressors.py",
        "tests/experiments/tasks/test_every_task.py",
    )
    which = "(sign_of_sum or ThirdBytes or bright_rows or has_a_row) and not real"
    printed = run(tree, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *suites, "-k", which)
    assert "passed" in printed and "skipped" not in printed
