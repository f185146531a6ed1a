"""Says where a job lies on the map, and which algorithm is first there.

python -m experiments.locate compute_ms=180 model_mb=440 workers=32 rate_mbit=10000 delay_ms=0.1

workers=8 to 128. compute_ms is of a step of one worker, model_mb of all gradients in float32,
delay_ms one way; loss_pct=0.1 and task=fashion_mnist may be added. docs/map.md says what the
answer rests on.
"""

# What answers takes seconds to import. It is imported once the command line was looked at.

from pathlib import Path

from experiments.advise.map.job import read_job
from experiments.advise.map.trainings import tasks
from host import commands
from host.command_line.parser import Parser
from host.errors import UserError
from host.output import check_folder, writing


def main() -> int:
    """The command line; returns the exit code."""
    commands.raise_at_sigterm()
    arguments = _parser().parse_intermixed_args()
    if (arguments.real is None) != (arguments.page is None):
        raise UserError("--real wants --page, and --page wants --real: give both")
    if arguments.trainings is not None and (
        arguments.extract is None or arguments.map is not None or arguments.words
    ):
        raise UserError(
            "--trainings is where --extract writes, and answers and the map are of the package's "
            "own file: give it beside --extract alone"
        )
    if arguments.map is not None:
        check_folder(arguments.map)
    if arguments.extract is not None:
        from experiments.advise.map.extract import FILE, extract

        extract(arguments.extract, arguments.trainings or FILE)
    if arguments.map is not None:
        from experiments.advise.map.atlas import panels
        from experiments.advise.map.page import write

        write(panels(tasks()), arguments.map)
    if arguments.real is not None:
        from experiments.advise.map.real import page, places

        with writing(arguments.page):
            arguments.page.write_text(page(places(arguments.real)))
    asked = (arguments.extract, arguments.map, arguments.real)
    if arguments.words or asked == (None, None, None):
        _answer(arguments.words)
    return 0


def _answer(words: list[str]) -> None:
    job, task = read_job(words, tasks())
    with commands.importing():
        from experiments.advise.map.answer import answers, caveats, where
        from host.command_line.console import Console
    asked = tasks() if task is None else [task]
    given = answers(job, asked)
    console = Console()
    print(where(job))
    for answer in given:
        print()
        console.print(answer.table())
        print("\n".join(answer.sentences()))
        print("By these settings:", *answer.settings(), sep="\n  ")
    print()
    print("\n".join(caveats(given, asked)))


def _parser() -> Parser:
    parser = Parser(
        prog=commands.program("experiments.locate"),
        description=commands.as_called(__doc__).split("\n")[0],
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="KEY=VALUE",
        help="compute_ms=, model_mb=, workers=, rate_mbit=, delay_ms=, loss_pct=, task=",
    )
    parser.add_argument(
        "--extract",
        type=Path,
        metavar="DIR",
        help="read the trainings anew from the records of the study map in DIR",
    )
    parser.add_argument(
        "--trainings",
        type=Path,
        metavar="FILE",
        help="where --extract writes them; the package's own file, which the map is made of, if "
        "left out",
    )
    parser.add_argument(
        "--map", type=Path, metavar="DIR", help="make the whole map: pictures, table, page"
    )
    parser.add_argument(
        "--real", type=Path, metavar="DIR", help="compare the real runs in DIR with the map"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="where --real writes its page")
    return parser


if __name__ == "__main__":
    commands.run(main)
