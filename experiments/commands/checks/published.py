"""Compares the model with measurements that others have published, as a page:

    python -m experiments.published --out results/validation

It says what was fitted, and explains every row that is far off.
"""

from pathlib import Path

from host import commands
from host.command_line.parser import Parser
from host.output import check_folder


def main() -> int:
    """The command line."""
    parser = Parser(
        prog=commands.program("experiments.published"),
        description=commands.as_called(__doc__).split("\n")[0],
    )
    parser.add_argument("--out", type=Path, help="the folder for published.md")
    arguments = parser.parse_args()
    if arguments.out:
        check_folder(arguments.out)
    with commands.importing():  # seconds, once the command line was read
        from experiments.predict.published import page
        from experiments.report import tables
    text = page.markdown(page.tables())
    print(text, end="")
    if arguments.out:
        tables.save({"published.md": text}, arguments.out)
    return 0


if __name__ == "__main__":
    commands.run(main)
