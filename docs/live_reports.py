"""The live reports of the site: the pages of committed records, made anew where these or the report
are newer.
"""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from experiments.runs.actions import Command, SideBySide, Unpack
from host.cores import usable_cores

ROOT = Path(__file__).parents[1]
MADE = ROOT / "build" / "live_reports"
INDEX = "reports/index.md"
REPORTS = {
    "reference_fashion": (
        "results/reference/fashion_mnist/runs.tar.xz",
        "Fashion-MNIST, 16 simulated workers, six networks",
    ),
    "reference_movies": (
        "results/reference/movie_snippets/runs.tar.xz",
        "movie snippets, 16 simulated workers, six networks",
    ),
    "reference_austen": (
        "results/reference/jane_austen/runs.tar.xz",
        "Jane Austen's novels, 16 simulated workers, six networks",
    ),
}
"""The archive that holds the runs of each, and what they are."""

_HEAD = """# Live reports

What `python -m experiments.report` makes of the records that git keeps: choose algorithms, move the
target, compare any two, and open each run with its configuration and the command that repeats it.
[Reports](../docs/reports.md) says how their numbers are made.

"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Called by MkDocs: adds the pages, and one that names them all."""
    _make()
    lines = []
    for name, (_, what) in REPORTS.items():
        page = MADE / name / "report.html"
        lines.append(f"- [{name}]({name}/report.html): {what} ({page.stat().st_size / 1e6:.1f} MB)")
        text = page.read_text()
        beside = [own for own in page.parent.glob("*.png") if f"{own.name} beside it" in text]
        for path in (page, *beside):
            to = f"reports/{name}/{path.name}"
            files.append(File.generated(config, to, abs_src_path=str(path)))
    files.append(File.generated(config, INDEX, content=_HEAD + "\n".join(lines) + "\n"))
    return files


def _make() -> None:
    """The reports that are missing or older than what they are made of."""
    sources = [path for path in (ROOT / "experiments").rglob("*") if path.suffix != ".pyc"]
    newest = max(path.stat().st_mtime for path in sources if path.is_file())
    todo = []
    for name, (archive, _) in REPORTS.items():
        page, since = MADE / name / "report.html", (ROOT / archive).stat().st_mtime
        if not page.exists() or page.stat().st_mtime < max(newest, since):
            todo.append(name)
    for archive in {REPORTS[name][0] for name in todo}:
        Unpack(archive=str(ROOT / archive), to=str(MADE / "runs")).run()
    reports = [
        Command(
            arguments=("experiments.report", str(MADE / "runs" / name), "--out", str(MADE / name))
        )
        for name in todo
    ]
    SideBySide(commands=tuple(reports), at_once=usable_cores(), is_quiet=True).run()
