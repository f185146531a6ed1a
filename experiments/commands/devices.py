"""Prints the devices of predictions, and the figures they are fitted to.

    python -m experiments.devices v100                  # one device
    python -m experiments.devices --write               # all; fits predict/shares.yaml anew
    python -m experiments.devices --measure FILE.yaml   # this machine's CPU, for device=FILE.yaml

Every published throughput is printed beside the fitted one, and beside the one that the figures of
all other models predict.
"""

# What fits takes seconds to import. It is imported once the command line was looked at.

import sys
from pathlib import Path

import yaml

from experiments.predict.device import SHARES, known_devices
from host import commands
from host.command_line.parser import Parser
from host.output import check_folder, writing


def main() -> int:
    """The command line."""
    parser = Parser(
        prog=commands.program("experiments.devices"),
        description=commands.as_called(__doc__).split("\n")[0],
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(known_devices())}")
    parser.add_argument("--write", action="store_true", help=f"write {SHARES.name}")
    parser.add_argument(
        "--measure",
        type=Path,
        metavar="FILE.yaml",
        help="measure this CPU, and write it as a device",
    )
    arguments = parser.parse_args()
    if arguments.measure:
        return _measure(arguments.measure)
    with commands.importing():
        from experiments.predict.shares_table import fit_all, page
    fits = fit_all()
    print(page([fit for fit in fits if fit.name in (arguments.names or known_devices())]), end="")
    if arguments.write:
        header = "# Written by `python -m experiments.devices --write`, from devices/.\n"
        entries = {fit.name: {} for fit in fits}
        for fit in fits:
            entries[fit.name][fit.precision] = fit.entry()
        SHARES.write_text(header + yaml.safe_dump(entries, sort_keys=False, width=100))
    return 0


def _measure(file: Path) -> int:
    check_folder(file.parent, "--measure")
    with commands.importing():
        from experiments.predict import measure_cpu
        from experiments.predict.shares_table import page
    fit = measure_cpu.measure(report=lambda line: print(line, file=sys.stderr, flush=True))
    print(page([fit]), end="")
    comment = f"# python -m experiments.devices --measure {file.name}\n"
    with writing(file, "--measure"):
        text = yaml.safe_dump(measure_cpu.plain(fit), sort_keys=False, width=100)
        file.write_text(comment + text)
    return 0


if __name__ == "__main__":
    commands.run(main)
