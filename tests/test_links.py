"""Links and images in Markdown lead to files that git has."""

import re
import subprocess
from urllib.parse import unquote

import pytest

from tests.paths import ROOT

_LINK = re.compile(r"!?\[[^\]\n]*\]\(([^)\s]+)\)")


def _tracked():
    """Every file that git has or is about to have, and every folder of one."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    shown = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=False)
    if shown.returncode:
        pytest.skip("this is no checkout of git")
    files = [ROOT / name for name in shown.stdout.split("\0") if name]
    files = [file for file in files if file.exists()]
    return {*files, *(parent for file in files for parent in file.parents)}


def test_relative_links_lead_to_files_that_git_has():
    tracked = _tracked()
    pages = sorted(path for path in tracked if path.suffix == ".md")
    assert ROOT / "README.md" in pages
    num_links, broken = 0, []
    for page in pages:
        for target in _LINK.findall(page.read_text()):
            if re.match(r"[a-z]+:|#", target):
                continue
            num_links += 1
            path = (page.parent / unquote(target.partition("#")[0])).resolve()
            if path not in tracked:
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert num_links > 20
    assert broken == []


def test_anchors_lead_to_headings():
    num_anchors, broken = 0, []
    for page in sorted(path for path in _tracked() if path.suffix == ".md"):
        for target in _LINK.findall(page.read_text()):
            name, sign, anchor = target.partition("#")
            if not sign or re.match(r"[a-z]+:", target):
                continue
            num_anchors += 1
            text = ((page.parent / name) if name else page).read_text()
            if anchor not in map(_anchor, re.findall(r"^#+ (.*)$", text, re.MULTILINE)):
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert num_anchors > 20
    assert broken == []


def _anchor(heading):
    """The anchor that GitHub gives it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
