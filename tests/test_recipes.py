"""Each recipe of CONTRIBUTING.md, followed to the letter in a copy of the tree."""

import re
import shutil
from pathlib import Path

import pytest

from tests import app
from tests.once import made_once
from tests.paths import ROOT

COPIED = (
    *("host", "kernels", "bagua_algos", "bagua_net", "netsim", "experiments", "hydra_plugins"),
    *("conf", "tests"),
    *("pyproject.toml", "results/validation/time.md"),
)
RECIPES = {  # the files of each, and no others
    "An algorithm": 3,
    "A compressor": 3,
    "A task": 3,
    "A network preset": 1,
    "A section of the report": 2,
}
SUITES = [
    *("-q", "-x", "-rp", "-p", "no:cacheprovider"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # the fork has them imported
    "tests/bagua_algos/algorithms/test_all_algorithms.py",
    "tests/bagua_algos/compressors/test_compressors.py",
    "tests/experiments/tasks/test_every_task.py",
    *("-k", "(sign_of_sum or ThirdBytes or bright_rows or has_a_row) and not real"),
]
RUN = ["backend=sim", "workers=4", "model=mlp", "max_steps=20", "eval_every=10"]


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


def make_tree(folder: Path) -> None:
    """A copy of the tree, in which each of the five recipes was followed."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)  # with what Numba has compiled, which takes 10 s
        elif source.exists():
            shutil.copy(source, target)
    for title in RECIPES:
        recipe = Recipe(title)
        assert len(recipe.files) == RECIPES[title], recipe.files.keys()
        recipe.apply(folder)


def run_commands(tree: Path) -> None:
    """Each command's output stands in a file of its name."""

    def training(name: str, *words: str) -> tuple[str, list[str]]:
        return "experiments.__main__", [*words, *RUN, f"hydra.run.dir=runs/{name}"]

    commands = {
        "help": ("experiments.__main__", ["--help"]),
        "algorithm": training("algorithm", "+algo=sign_of_sum"),
        "compressor": training("compressor", "+algo=bytegrad", "algo.compressor=third_bytes"),
        "task": training("task", "+algo=allreduce", "task=bright_rows"),
        "network": training("network", "+algo=allreduce", "net=satellite"),
        "compare": ("experiments.commands.compare", ["runs"]),
        "report": ("experiments.report.__main__", ["runs", "--out", "out"]),
        "suites": ("pytest", SUITES),
    }
    forks = app.Forks(str(tree), tree, COLUMNS="400")
    for name, (module, words) in commands.items():
        ended = app.run(*words, module=module, forks=forks)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        (tree / f"{name}.txt").write_text(ended.stdout)
    forks.close()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree, once its commands have run."""

    def make(folder: Path) -> None:
        make_tree(folder)
        run_commands(folder)

    return made_once(tmp_path_factory, "recipes", make)


def test_what_a_recipe_adds_runs_and_is_in_help_and_table(tree):
    page = (tree / "out/report.html").read_text()
    help_text, table = (tree / "help.txt").read_text(), (tree / "compare.txt").read_text()
    news = ("sign_of_sum", "bright_rows", "satellite")
    assert all(word in help_text for word in (*news, "third_bytes"))
    assert all(word in table for word in news), table
    assert all(word in page for word in (*news, "ends with the smallest loss"))
    assert "third_bytes" in (tree / "runs/compressor/config.yaml").read_text()


def test_the_shared_suites_take_what_a_recipe_adds(tree):
    printed = (tree / "suites.txt").read_text()
    assert "skipped" not in printed
    passed = [line for line in printed.splitlines() if line.startswith("PASSED ")]
    for new in ("sign_of_sum", "ThirdBytes", "bright_rows"):
        assert any(new in line for line in passed), printed
