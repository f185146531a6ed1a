import subprocess
import sys
from functools import partial

import pytest

from experiments.commands import study
from experiments.runs.actions import Command, Copy
from experiments.runs.parts import choose_parts
from host.errors import Failure
from host.remaining import Work

STUDY = """
parts:
  first: {what: Makes., took: 1 min, actions: [{sweep: algo=a}]}
  second: {what: Compares., actions: [{at_once: 3, actions: [{command: module p}]}]}
  third: {what: Copies., actions: [{copy: /none/such, to: x}, {command: never}]}
  fourth: {what: Times., actions: [{command: m, took: 40 s}, {command: n, took: 5 min}]}
"""


@pytest.fixture(autouse=True)
def written(tmp_path, monkeypatch):
    folder = tmp_path / "conf" / "study"
    folder.mkdir(parents=True)
    (folder / "s.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            ["--list"],
            [
                *("first            Makes. Took 1 min.", "second           Compares."),
                *("third            Copies.", "fourth           Times. Took 6 min."),
            ],
        ),
        (["second", "--print"], ["# second: Compares.", "# 3 at a time:", "python -m module p"]),
    ],
)
def test_parts_are_listed_and_printed_and_not_run(arguments, lines, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["study", "s", *arguments])
    assert study.main() == 0
    assert capsys.readouterr().out.splitlines() == lines


def test_a_part_that_fails_says_how_to_go_on(capsys):
    [part] = choose_parts("s", ["third"])
    with pytest.raises(Failure, match=r"third is not done, python -m experiments\.study s third g"):
        study.run_parts([part], "s")
    assert "never" not in capsys.readouterr().err


def test_each_action_says_what_is_left_of_all_parts(tmp_path, capsys, monkeypatch):
    """Of the second part it is known that it takes three times as long as the first."""
    (tmp_path / "from").touch()
    copy = "{copy: from, to: %s}"
    (tmp_path / "conf" / "study" / "t.yaml").write_text(
        f"parts:\n  a: {{what: One., took: 10 s, actions: [{copy % 'a'}]}}\n"
        f"  b: {{what: Two., took: 30 s for 2, actions: [{copy % 'b'}, {copy % 'c'}]}}\n"
    )
    now_s = iter([*(0.0,) * 2, *(100.0,) * 20])
    monkeypatch.setattr(study, "Work", partial(Work, clock=lambda: next(now_s)))
    study.run_parts(choose_parts("t", []), "t")
    said = [line for line in capsys.readouterr().err.splitlines() if ";" in line]
    assert said[0] == "part a; 25 % done, about 5 min left"
    assert said[-1] == "part b; 100 % done, about 0 s left"


def test_how_long_a_part_took_counts_until_its_own_pieces_tell(tmp_path, capsys, monkeypatch):
    """It took twice as long, where that was noted."""
    copies = ", ".join(["{copy: from, to: a}"] * 50)
    (tmp_path / "conf" / "study" / "t.yaml").write_text(
        f"parts: {{a: {{what: One., took: 10 min, actions: [{copies}]}}}}\n"
    )
    now_s = [0.0]
    monkeypatch.setattr(Copy, "run", lambda self: now_s.append(now_s[-1] + 6))
    monkeypatch.setattr(Copy, "size", 1.0)
    monkeypatch.setattr(study, "Work", partial(Work, clock=lambda: now_s[-1]))
    study.run_parts(choose_parts("t", []), "t")
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("part a;")]
    assert said[0] == "part a; 2 % done, about 9 min left"
    assert said[23] == "part a; 43 % done, about 3 min left"


def test_a_part_whose_first_action_writes_what_the_second_goes_by(tmp_path, capsys, monkeypatch):
    """As `draw` writes the settings of which `run` says how many runs it is."""
    settings = tmp_path / "own" / "trials.yaml"
    command = f"experiments.equal_tuning run --nets none --seeds 0 {settings}"
    (tmp_path / "drawn").mkdir()
    (tmp_path / "drawn" / "trials.yaml").write_text("a: [x=1, x=2, x=3]\n")
    (tmp_path / "conf" / "study" / "t.yaml").write_text(
        "parts: {a: {what: One., actions: "
        f"[{{copy: drawn/trials.yaml, to: own}}, {{command: {command}}}]}}}}\n"
    )
    monkeypatch.setattr(Command, "run", lambda self: None)
    [part] = choose_parts("t", [])
    assert part.actions[1].size == 1
    study.run_parts([part], "t")
    assert part.actions[1].size == 3
    assert "part a; 100 % done" in capsys.readouterr().err


def test_an_unknown_name_is_one_sentence_and_exit_code_2():
    for arguments in (["other"], ["reference", "other"]):
        command = [sys.executable, "-m", "experiments.study", *arguments]
        ended = subprocess.run(command, capture_output=True, text=True)
        assert ended.returncode == 2
        assert ended.stderr.startswith("error: ") and ended.stderr.count("\n") == 1
