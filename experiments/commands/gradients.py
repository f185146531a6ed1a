"""Prints the rank and the entries of a worker's first gradients: what compression can drop.

python -m experiments.gradients experiment=reference_movies algo=allreduce profile=null
"""

# What trains takes seconds to import. It is imported once the command line was looked at.

from pathlib import Path

from experiments.plan.compose import compose_config
from experiments.plan.limits.of_host import check_host
from experiments.plan.part import check_first
from host import commands
from host.command_line.parser import Parser
from host.errors import UserError


def main() -> int:
    """The command line; returns the exit code."""
    parser = Parser(
        prog=commands.program("experiments.gradients"),
        description=commands.as_called(__doc__).split("\n")[0],
    )
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="as for the app")
    parser.add_argument(
        "--batches", type=int, help="default: 100, or as many as the training set fills"
    )
    arguments = parser.parse_args()
    if arguments.batches is not None and arguments.batches < 1:
        raise UserError(f"--batches must be at least 1, got {arguments.batches}")
    config = compose_config(arguments.overrides)
    check_first(config)
    check_host(config)  # whatever the model's outputs and the workers' GPUs are
    with commands.importing():
        from experiments.plan.factory import make_plan
        from experiments.training.gradients import gradient_facts
    plan = make_plan(config, Path())
    print(gradient_facts(plan, arguments.batches))
    return 0


if __name__ == "__main__":
    commands.run(main)
