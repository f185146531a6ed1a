"""CONTRIBUTING.md has a line for every module, and the recipes' files are where it says."""

import re

from tests.paths import ROOT

PACKAGES = (
    *("host", "kernels", "bagua_algos", "bagua_net", "netsim", "experiments", "hydra_plugins"),
)
LINE = re.compile(r"^- `([\w/]+\.py)`: (\S.*)$", re.MULTILINE)
TEXT = (ROOT / "CONTRIBUTING.md").read_text()


def modules() -> set[str]:
    """The modules of the packages, but for the `__init__.py` of each folder."""
    return {
        str(file.relative_to(ROOT))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        if file.name != "__init__.py" and "__pycache__" not in file.parts
    }


def test_every_module_has_exactly_one_line():
    named = [path for path, _ in LINE.findall(TEXT)]
    missing = [f"- `{path}`: ..." for path in sorted(modules() - set(named))]
    gone = [f"- `{path}`: ..." for path in sorted(set(named) - modules())]
    problems = [
        *(["add to CONTRIBUTING.md, under its folder:", *missing] if missing else []),
        *(["take out of CONTRIBUTING.md:", *gone] if gone else []),
    ]
    assert not problems, "\n".join(problems)
    assert len(named) == len(set(named)), "a module has two lines"


def test_lines_stand_under_their_folder_in_the_order_of_the_alphabet():
    num_lines = 0
    for heading, body in re.findall(r"^### (\S+/?\S*)\n(.*?)(?=^##|\Z)", TEXT, re.M | re.S):
        paths = [path for path, _ in LINE.findall(body)]
        num_lines += len(paths)
        assert paths == sorted(paths), heading
        assert {path.rpartition("/")[0] for path in paths} <= {heading}
    assert num_lines == len(LINE.findall(TEXT)) > 100


def test_every_word_is_in_the_glossary_once():
    glossary = TEXT.partition("## Words")[2].partition("\n## ")[0]
    words = re.findall(r"^\| ([^|]+?) \|", glossary, re.MULTILINE)[2:]
    assert len(words) > 50
    assert len(words) == len(set(words))


def test_lines_wrap():
    prose = [line for line in TEXT.splitlines() if not line.startswith(("|", "    "))]
    assert max(map(len, prose)) <= 120
