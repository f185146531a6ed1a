"""Finds the first algorithm to the accuracy, over rate and delay, and the lines where it changes.

python -m experiments.surface task=mnist5k model=mlp 'algo=glob(*)' [--rates 10:10000:7]

Every algorithm is trained once for each seed on simulated workers; only the clocks run again at
each point. Writes surface.png, .svg and .csv.
"""

# What trains takes seconds to import. It is imported once the command line was looked at.

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.advise.arguments import prediction_parser
from experiments.advise.axes import Axes, parse_axis
from experiments.advise.choice import choose
from host import commands
from host.command_line.parser import Parser
from host.errors import UserError
from host.output import check_folder, writing
from host.words import counted

if TYPE_CHECKING:
    from experiments.advise.candidates import Field
    from experiments.advise.grid import Grid


def main() -> int:
    """The command line; returns the exit code."""
    commands.raise_at_sigterm()
    arguments = _parser().parse_intermixed_args()
    axes = Axes(parse_axis("--rates", arguments.rates), parse_axis("--delays", arguments.delays))
    if arguments.coarse < 2:
        raise UserError(f"--coarse must be at least 2, got {arguments.coarse}")
    check_folder(arguments.out)
    choice = choose(arguments.overrides, arguments.seeds)
    with commands.importing():
        from experiments.advise.candidates import gather
        from experiments.advise.surface import check_grid, compute, sentences
    check = partial(check_grid, axes=axes)
    field = gather(choice, arguments.seeds, check=check)
    grid = compute(field.candidates, axes, arguments.coarse)
    _write(grid, field, arguments.out)
    print("\n".join(sentences(grid, field)))
    return 0


def _write(grid: Grid, field: Field, out: Path) -> None:
    """The table as CSV, and the picture if there is a first anywhere."""
    with writing(out):
        grid.frame().to_csv(out / "surface.csv", index=False, float_format="%.5g")
    if grid.winners():
        from experiments.advise.surface_plot import surface_plot
        from experiments.report.figures.files import save_plot

        plan = field.candidates[0].plans[0]
        title = (
            f"First to {plan.target}, simulated: {plan.names['task']}, "
            f"{plan.names['model']}, {counted(plan.workers, 'worker')}, "
            f"{counted(len(field.candidates[0].plans), 'seed')}"
        )
        for file in save_plot(surface_plot(grid, title), out, "surface"):
            print(f"Plot: {file}")


def _parser() -> Parser:
    parser = prediction_parser("surface", __doc__ or "")
    grid = "LOW:HIGH:NUM"
    parser.add_argument("--rates", default="10:10000:7", metavar=grid, help="Mbit/s")
    parser.add_argument("--delays", default="0.1:100:6", metavar=grid, help="ms, one way")
    parser.add_argument(
        "--coarse",
        type=int,
        default=3,
        metavar="NUM",
        help="rates and delays at which an algorithm that depends on timing is trained (default 3)",
    )
    parser.add_argument("--out", type=Path, default=Path("results/surface"), metavar="DIR")
    return parser


if __name__ == "__main__":
    commands.run(main)
