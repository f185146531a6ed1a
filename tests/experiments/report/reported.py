"""The report of a made-up study, which several test modules look at."""

from pathlib import Path

from tests import app
from tests.experiments.recorded import write_study
from tests.once import made_once


def reported(tmp_path_factory) -> Path:
    """A folder with runs/ and reports/tradeoff/."""

    def report(root: Path) -> None:
        write_study(root / "runs")
        out = root / "reports" / "tradeoff"
        words = (root / "runs", "--out", out)
        done = app.run(*words, module="experiments.report.__main__")
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [str(out / "report.html"), str(out / "report.ipynb")]

    return made_once(tmp_path_factory, "report", report)
