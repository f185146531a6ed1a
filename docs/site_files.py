"""The files of the site: the repository's, at their own places, so that links hold in both."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PATTERNS = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE"),
    *("docs/**/*.md", "docs/*.png", "docs/*.css", "docs/*.js", "examples/*.py", "conf/**/*.yaml"),
    *("results/*.yaml", "results/*/*.md", "results/*/*.png", "results/*/*.yaml"),
    *("results/*/*.csv", "results/*/*.jsonl", "results/*/*/*.md", "results/*/*/*.yaml"),
    *("results/map/*/*/*.md", "results/map/*/*/*.yaml"),
)
UNTRACKED = ("runs", "demo", "reports", "records", "surface", "tunes")
"""Folders of results/ that hold a user's own work."""

_LINK = re.compile(r"\[([^\]\n]+)\]\(([^)\s#:]+)\)")
_FROM_ELSEWHERE = re.compile(
    r"""<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(https?:[^"]+)"""
)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by MkDocs: the files of its theme stay, all others are the repository's."""
    untracked = [ROOT / "results" / name for name in UNTRACKED]
    ours = {path for pattern in PATTERNS for path in ROOT.glob(pattern)}
    names = sorted(
        path.relative_to(ROOT).as_posix()
        for path in ours
        if not any(path.is_relative_to(folder) for folder in untracked)
    )
    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    directory_urls = config.use_directory_urls
    of_repository = [File(name, str(ROOT), config.site_dir, directory_urls) for name in names]
    return Files([*of_theme, *of_repository])


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Called by MkDocs: beside a page that is alone in its tab no list of pages takes its room. A
    link to a folder becomes its text, since a site shows no folders.
    """
    if page.parent is None:
        page.meta["hide"] = ["navigation"]
    here = (ROOT / page.file.src_uri).parent
    return _LINK.sub(lambda link: link[1] if (here / link[2]).is_dir() else link[0], markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Called by MkDocs: a page that loads anything from elsewhere is no page to read offline."""
    if found := _FROM_ELSEWHERE.search(output):
        raise PluginError(f"{page.file.src_uri} loads {found[1]}: put it into docs/")
    return output
