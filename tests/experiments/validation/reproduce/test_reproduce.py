import json
import subprocess

import pytest

from experiments.runs.actions import Command, Copy, Pack
from experiments.validation.reproduce import quotes
from experiments.validation.reproduce.recipe import Recipe, load_recipe
from experiments.validation.reproduce.reproduce import reproduce, write
from host.errors import Failure, UserError
from tests.paths import ROOT

MAKE = """
import sys
from pathlib import Path
total = sum(int(file.read_text()) for file in sorted(Path(sys.argv[1]).rglob("number")))
out = Path(sys.argv[2]); out.parent.mkdir(parents=True, exist_ok=True)
out.write_text(f"Words.\\n\\n| total |\\n| --- |\\n| {total} |\\n")
"""
TABLE = "results/reference/page/table.md"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A checkout whose one page sums the numbers of two records; a figure has no records."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/sum_up.py").write_text(MAKE)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    root = tmp_path / "checkout"
    for path, text in {
        TABLE: "Words.\n\n| total |\n| --- |\n| 5 |\n",
        "docs/a.png": "figure",
        "results/README.md": (
            "# A\n\n<!-- table: reference/page/table.md -->\n\n| total |\n| --- |\n| 4 |\n\nB.\n"
        ),
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    keep(root, {"one": (2, "a1"), "two": (3, "a1")})
    write(root, reproduce(root, recipe()))
    return root


def keep(root, records):
    """Pack records: a number each, and the commit of a clean tree, or None for a dirty one."""
    runs = root.parent / "runs"
    for name, (number, commit) in records.items():
        (runs / "page" / name).mkdir(parents=True, exist_ok=True)
        (runs / "page" / name / "number").write_text(str(number))
        (runs / "page" / name / "summary.json").write_text("{}")
        fields = {"git_commit": commit or "d1", "git_dirty": commit is None}
        (runs / "page" / name / "environment.json").write_text(json.dumps(fields))
    archive = str(root / "results/runs.tar.xz")
    Pack(folders=("page",), root=str(runs), archive=archive).run()


def recipe(**fields):
    pack = Pack(folders=("page",), root="results/runs", archive="results/runs.tar.xz")
    usual = {
        "archives": (pack,),
        "commands": (Command(arguments=("sum_up", "results/runs/page", TABLE)),),
        "others": (),
        "without_records": {"docs/a.png": "a run that nobody kept"},
    }
    return Recipe(**usual | fields)


def test_what_was_made_is_found_again(root):
    found = reproduce(root, recipe())
    assert not found.different and not found.problems
    assert list(found.lines()) == [
        "results: 1 file the same",
        "results/reference: 1 file the same",
        "results/reference/page: 1 file the same; 2 records, none of a dirty tree, of 1 commit",
        "docs/a.png: not made, a run that nobody kept",
    ]
    assert "| 5 |" in (root / "results/README.md").read_text()


def test_one_character_is_named_and_written_anew(root):
    (root / TABLE).write_text((root / TABLE).read_text().replace("5", "6"))
    (root / "results/README.md").write_text(
        (root / "results/README.md").read_text().replace("5", "6")
    )
    found = reproduce(root, recipe())
    assert sorted(found.different) == ["results/README.md", TABLE]
    assert "results/reference/page: table.md of 1 file differ; " in "\n".join(found.lines())
    write(root, found)
    assert not reproduce(root, recipe()).different


def test_other_records_make_other_tables_and_another_provenance(root):
    keep(root, {"two": (4, "a1")})
    assert sorted(reproduce(root, recipe()).different) == [
        *("results/README.md", TABLE, "results/reference/provenance.md"),
    ]


def test_no_page_comes_to_have_records_of_dirty_trees_or_several_commits(root):
    for commit in (None, "b2"):
        keep(root, {"two": (3, commit)})
        [problem] = reproduce(root, recipe()).problems
        assert problem.startswith("page: 2 records, ") and "of 2 commits" in problem


def test_a_command_that_fails_is_named_and_keeps_no_other_from_running(root):
    summed = recipe().commands[0]
    commands = tuple(
        Command(arguments=arguments, took_s=took_s)
        for arguments, took_s in (
            (("sum_up", "results/runs/page", TABLE, "1"), 9),
            (summed.arguments, 8),
            (("sum_up", "results/runs/page", TABLE, "two words"), 7),
        )
    )
    ran = root.parent / "ran"
    (root.parent / "modules/sum_up.py").write_text(
        f"{MAKE}Path({str(ran)!r}).open('a').write('.')\nif sys.argv[3:]: sys.exit(3)\n"
    )
    with pytest.raises(Failure) as failed:
        reproduce(root, recipe(commands=commands))
    one, other = (
        f"python -m sum_up results/runs/page {TABLE} {last} ended with exit code 3"
        for last in ("1", "'two words'")
    )
    assert str(failed.value) == f"{one}; {other}"
    assert ran.read_text() == "..."


def test_a_file_that_nobody_explains_is_named(root):
    (root / "results/reference/page/other.md").write_text("")
    (root / "docs/a.png").unlink()
    copy = Copy(source="results/runs/page/one/number", to="results/reference")
    problems = reproduce(root, recipe(others=(copy,))).problems
    assert [problem.split(":")[0] for problem in problems] == [
        *("results/reference/page/other.md", "docs/a.png"),
    ]


def test_a_quote_of_what_is_not_made_is_named(root):
    page = root / "results/README.md"
    page.write_text(page.read_text().replace("table.md -->", "tables.md -->"))
    [problem] = reproduce(root, recipe()).problems
    assert problem.endswith("quotes results/reference/page/tables.md, which is no table")


def test_a_quote_has_the_columns_that_its_page_names(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("A.\n\n<!-- table: t.md -->\n\n| wan | of |\n| - | - |\n| old | x |\n\nB.\n")
    made = {"t.md": b"T.\n\n| of | n | wan, 9 |\n| --- | --- | ---: |\n| a | 3 | 1 |\n"}
    assert quotes.requoted(page, made, tmp_path).decode() == (
        "A.\n\n<!-- table: t.md -->\n\n| wan | of |\n| ---: | --- |\n| 1 | a |\n\nB.\n"
    )
    page.write_text(page.read_text().replace("| of |", "| on |"))
    with pytest.raises(ValueError, match="has 0 columns 'on'"):
        quotes.requoted(page, made, tmp_path)
    made = {"t.md": b"| a, b=1 | a, b=2 |\n| --- | ---: |\n| 1 | 2 |\n"}
    page.write_text("<!-- table: t.md -->\n\n| a, b=2 |\n| - |\n")
    assert b"| 2 |" in quotes.requoted(page, made, tmp_path)
    page.write_text("<!-- table: t.md -->\n\n| a |\n| - |\n")
    with pytest.raises(ValueError, match="has 2 columns 'a'"):
        quotes.requoted(page, made, tmp_path)


def test_a_page_in_another_folder_is_kept_up_to_date_too(root):
    page = root / "docs/a.md"
    page.write_text(
        "<!-- table: ../results/reference/page/table.md -->\n\n| total |\n| - |\n| old |\n"
    )
    made = reproduce(root, recipe())
    assert not made.problems
    assert "docs/a.md" in made.different
    assert b"old" not in made.made["docs/a.md"]


def test_the_projects_own_recipe_is_of_its_study():
    own = load_recipe(ROOT)
    git = ["git", "ls-files", "results/*.tar.xz"]
    kept = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {pack.archive for pack in own.archives} == set(kept.split())
    outs = {arguments[-1] for arguments in (command.arguments for command in own.commands)}
    assert {"results/reference/fashion_mnist", "results/validation"} <= outs


def test_a_file_that_says_nothing_of_the_kind_is_refused(tmp_path):
    (tmp_path / "results").mkdir()
    for text in ("studies: {}", "[", "1"):
        (tmp_path / "results/reproduce.yaml").write_text(text)
        with pytest.raises(UserError, match=r"reproduce\.yaml does not say how files are made"):
            load_recipe(tmp_path)
