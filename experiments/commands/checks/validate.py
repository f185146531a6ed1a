"""Simulated time against the real: `python -m experiments.validate --out results/validation`."""

import argparse
from pathlib import Path

from host import commands
from host.output import check_folder


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.validate", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--out", type=Path, help="the folder for time.md, .csv, .png and .svg")
    parser.add_argument("--ci", action="store_true", help="three cells only")
    arguments = parser.parse_args()
    if arguments.out:
        check_folder(arguments.out)
    with commands.importing():  # seconds, once the command line was read
        import pandas as pd
        from rich.console import Console
        from rich.progress import Progress

        from experiments.validation.step_times.compare import compare
        from experiments.validation.step_times.grid import CI_GRID, GRID
        from experiments.validation.step_times.page import markdown, plot, summary
    cells = CI_GRID if arguments.ci else GRID
    rows = []
    with Progress(console=Console(stderr=True)) as progress:
        for row in progress.track(compare(cells), total=len(cells)):
            rows.append(row)
            print(
                *(f"{value:.4g}" if isinstance(value, float) else value for value in row.values())
            )
    frame = pd.DataFrame(rows)
    print(summary(frame))
    if arguments.out:
        frame.to_csv(arguments.out / "time.csv", index=False, float_format="%.5g")
        (arguments.out / "time.md").write_text(markdown(frame))
        plot(frame, arguments.out)
    return 0


if __name__ == "__main__":
    commands.run(main)
