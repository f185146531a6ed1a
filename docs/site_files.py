"""The files of the site: the repository's, at their own places, so that links hold in both."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PATTERNS = (
    *("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "LICENSE"),
    *("docs/**/*.md", "docs/*.png", "docs/*.css", "examples/*.py", "conf/**/*.yaml"),
    *("results/*/*.md", "results/*/*.png", "results/*/*.yaml", "results/reference/*/*.md"),
    "results/reference/*/*.yaml",
)
UNTRACKED = ("runs", "demo", "reports", "records", "surface", "tunes")
"""Folders of results/ that hold a user's own work."""


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
