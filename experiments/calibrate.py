"""Measures a worker's own work on this machine: a profile, for simulated runs by `profile=FILE`.

python -m experiments.calibrate +algo=bytegrad model=mlp cluster.sharing=4 --out bytegrad.yaml

The network's constants are measured by `python -m netsim calibrate`.
"""

import argparse
import tempfile
from pathlib import Path

import torch

from experiments.command import exit_code
from experiments.compose import compose_config
from experiments.config import make_plan
from experiments.errors import UserError
from experiments.profile import Profile
from experiments.rehearsal import rehearse
from experiments.trial import check_model
from kernels import commands


def calibrate(overrides: list[str]) -> Profile:
    """The profile of what `overrides` of the app's configuration train.

    Raises `UserError` for overrides that do not fit, and for PyTorch's own algorithms.
    """
    torch.set_num_threads(1)  # a pool of threads would not survive the fork
    config = compose_config([*overrides, "backend=sim"])
    plan = make_plan(config, Path(tempfile.gettempdir()))
    data = plan.task.load()
    check_model(plan, data)
    return rehearse(plan, data, sharing=plan.cluster.sharing)


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.calibrate", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="as for the app")
    parser.add_argument("--out", type=Path, required=True, help="the profile's YAML")
    arguments = parser.parse_args()
    return exit_code(lambda: _write(calibrate(arguments.overrides), arguments.out))


def _write(profile: Profile, out: Path) -> None:
    try:
        profile.save(out)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): choose --out") from error
    print(out.read_text(), end="")


if __name__ == "__main__":
    commands.run(main)
