"""What is made wrong, and what is known of it afterwards."""

import ast
import subprocess
from pathlib import Path

import pytest

from tests.mutate import kept, plan
from tests.mutate.__main__ import Draw, score
from tests.mutate.holding import Holding
from tests.mutate.kept import Outcome, Outcomes
from tests.mutate.mutants import mutants
from tests.mutate.plan import Group
from tests.mutate.tree import Tree

MODULE = '''
"""Sums."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT = 1

def total(values: list[int], limit: int = 9) -> int:
    """The sum, at most `limit`."""
    found = 0
    for value in values:
        if not value:
            continue
        found += value
    if found < 0:
        raise ValueError(f"{found + 1} is too little")
    log.append(found)
    return min(found, limit)

log = []
'''
TESTS = """
import pytest
import sums

@pytest.fixture(scope="session")
def made():
    return sums.total([1, 0, 2])

def test_first(made):
    assert sums.log == [3]

def test_second(made):
    assert made == 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "sums.py").write_text(MODULE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_sums.py").write_text(TESTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_one_thing_at_a_time_is_wrong(folder):
    found = mutants("sums.py")
    assert sorted(mutant.change for mutant in found) == sorted(
        [
            *("9 -> 10", "0 -> 1", "Not left out", "Continue -> Break", "Add -> Sub"),
            *("Lt -> LtE", "0 -> 1", "without log.append(found)", "min -> max"),
        ]
    )
    whole = ast.unparse(ast.parse(MODULE)).splitlines()
    for mutant in found:
        lines = mutant.source().splitlines()
        ast.parse(mutant.source())
        assert sum(a != b for a, b in zip(lines, whole, strict=True)) == 1, mutant
    assert len({mutant.name for mutant in found}) == len(found)


def test_a_name_lasts_while_other_functions_change(folder):
    before = {mutant.name: mutant for mutant in mutants("sums.py")}
    Path("sums.py").write_text(f"def more(x):\n    return x + 1\n{MODULE}")
    after = {mutant.name: mutant for mutant in mutants("sums.py") if mutant.function != "more"}
    assert after.keys() == before.keys()
    assert all(after[name].around == before[name].around for name in before)
    assert all(after[name].chance == before[name].chance for name in before)


def test_a_survivor_is_tried_again_when_tests_change(folder):
    first, second, *_ = mutants("sums.py")
    outcomes = Outcomes("sums.py")
    assert outcomes.of(first, "then") is None
    outcomes.keep(Outcome(first.name, first.around, "then", "", 1.0))
    outcomes.keep(Outcome(second.name, second.around, "then", "test_first", 1.0))
    with Path(kept.FOLDER, "sums.jsonl").open("a") as file:
        file.write('{"name": "killed in the mid')
    again = Outcomes("sums.py")
    assert again.of(first, "then") and not again.of(first, "now")
    assert again.of(second, "now")
    Path("sums.py").write_text(MODULE.replace("log.append(found)", "log.append(2 * found)"))
    assert not any(again.of(mutant, "now") for mutant in mutants("sums.py"))


def test_a_table_tells_what_was_noticed_at_first_from_what_is_noticed_now(folder):
    first, second, third, *_ = drawn = sorted(mutants("sums.py"), key=lambda m: m.chance)
    outcomes = Outcomes("sums.py")
    outcomes.keep(Outcome(first.name, first.around, "then", "", 1.0))
    outcomes.keep(Outcome(first.name, first.around, "now", "test_first", 1.0))
    outcomes.keep(Outcome(second.name, second.around, "now", "", 1.0))
    outcomes.keep(Outcome(third.name, third.around, "then", "test_first", 1.0))
    known = {("sums.py", second.name): "a reason"}
    both = Draw(share=drawn[3].chance)
    assert score("sums.py", both, known) == ("sums.py", 9, 3, 1, 1, 2)
    later = Draw(share=drawn[3].chance, beyond=drawn[1].chance)
    assert score("sums.py", later, {}) == ("sums.py", 9, 2, 0, 1, 1)
    assert str(score("sums.py", later, {})).endswith("| 50 % |")


def test_every_group_has_modules_and_tests():
    found = plan.groups()
    for group in found:
        assert group.modules and all(Path(path).is_file() for path in group.modules), group.name
        assert group.files() and all(Path(path).is_file() for path in group.files()), group.name
    modules = [path for group in found for path in group.modules]
    assert len(modules) == len(set(modules)), "a module has one group"


def test_every_equivalent_mutant_can_be_made_and_has_a_reason():
    known = plan.equivalents()
    assert all(known.values())
    paths = {path for path, _ in known}
    assert paths <= {m for group in plan.groups() for m in group.modules}
    made = {(path, mutant.name) for path in paths for mutant in mutants(path)}
    assert not known.keys() - made


@pytest.mark.parametrize("name", ["map.yaml", "equivalent.yaml"])
def test_nothing_is_said_twice_of_a_group_or_a_module(name):
    """YAML would take the last word."""
    lines = (plan.HERE / name).read_text().splitlines()
    heads = [line for line in lines if line.endswith(":") and not line.startswith((" ", "#"))]
    assert len(heads) == len(set(heads)) > 10


@pytest.mark.slow
def test_tests_in_a_copy_notice_or_do_not(folder, monkeypatch):
    subprocess.run(["git", "init", "-q"], check=True)
    group = Group("sums", ("sums.py",), ("tests/test_sums.py",))
    with Tree(folder / "copy") as tree:
        holding = Holding(group, tree)
        noticed = {m.change: holding.try_(m).noticed_by for m in mutants("sums.py")}
    first, second = (f"tests/test_sums.py::{name}" for name in ("test_first", "test_second"))
    assert noticed["9 -> 10"] == noticed["Lt -> LtE"] == ""
    assert noticed["without log.append(found)"] == first
    assert noticed["Add -> Sub"] in (first, second)
    assert noticed["min -> max"] == second
    assert Path("sums.py").read_text() == MODULE == (folder / "copy" / "sums.py").read_text()
