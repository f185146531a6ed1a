"""Measures a worker's own work on this machine: a profile, for simulated runs by `profile=FILE`.

python -m experiments.calibrate +algo=bytegrad model=mlp cluster.sharing=4 --out bytegrad.yaml
python -m experiments.calibrate algo=bytegrad,qsgd model=mlp --out "profiles/{algo}.yaml"

The network's constants are measured by `python -m netsim calibrate`.
"""

# What trains takes seconds to import. It is imported once the command line was looked at.

from pathlib import Path

from experiments.advise.choice import NUM_REHEARSALS, choose
from host import commands
from host.command_line.parser import Parser
from host.commands import say
from host.errors import UserError
from host.output import check_folder, writing
from host.remaining import Work

ALGO = "{algo}"

IMPORTING, IMPORTING_S = "importing", 1.5
"""The first part of its work."""


def calibrate(overrides: list[str], out: str, num_rounds: int) -> None:
    """Write the profile of each algorithm that `overrides` of the app's configuration choose.

    Raises `UserError` for overrides that do not fit, for PyTorch's own algorithms, and for a file
    that cannot be written, or is none.
    """
    choice = choose(overrides)
    if num_rounds < 1:
        raise UserError(f"--rounds must be at least 1, got {num_rounds}")
    if len(choice.algos) > 1 and ALGO not in out:
        raise UserError(f"--out is one file for several algorithms: have {ALGO} in its name")
    for algo in choice.algos:
        path = Path(out.replace(ALGO, algo))
        if path.exists() and not path.is_file():
            raise UserError(f"--out={out} is no file: name one, such as {ALGO}.yaml")
        check_folder(path.parent)
    work = Work({IMPORTING: IMPORTING_S})
    work.begin(IMPORTING)
    with commands.importing():
        from experiments.advise.candidates import REHEARSAL_S, REHEARSING, gather
    work.expect(REHEARSING, REHEARSAL_S * num_rounds * len(choice.algos))
    anew = choice._replace(others=[*choice.others, "profile=null"])
    field = gather(anew, 1, num_rehearsals=num_rounds, briefly=False, work=work)
    for remark in field.remarks():
        say(remark)
    for candidate in field.candidates:
        path = Path(out.replace(ALGO, candidate.algo))
        with writing(path):
            candidate.profile.save(path)
        print(path if len(field.candidates) > 1 else path.read_text().rstrip())


def main() -> int:
    """The command line; returns the exit code."""
    commands.raise_at_sigterm()
    parser = Parser(
        prog=commands.program("experiments.calibrate"),
        description=commands.as_called(__doc__).split("\n")[0],
    )
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="as for the app")
    parser.add_argument(
        "--out", required=True, help=f"the profile's YAML; {ALGO} in it stands for the algorithm"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=NUM_REHEARSALS,
        help="rehearsals of each algorithm, in turn; the fastest counts (default: %(default)s)",
    )
    arguments = parser.parse_args()
    calibrate(arguments.overrides, arguments.out, arguments.rounds)
    return 0


if __name__ == "__main__":
    commands.run(main)
