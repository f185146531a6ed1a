"""Measures what each algorithm costs a worker itself: `python -m experiments.bench_algorithms`."""

import statistics

from experiments.plan.messages import choices
from host import commands
from host.command_line.parser import Parser

GPT_STEPS = 10
"""A round."""


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = Parser(
        prog=commands.program("experiments.bench_algorithms"),
        description=commands.as_called(__doc__).split("\n")[0],
    )
    parser.add_argument("--repeats", type=int, default=3, help="rounds (default 3)")
    parser.add_argument(
        "--gpt", action="store_true", help="a step of examples/gpt.py on real workers instead"
    )
    parser.add_argument("--model", default="mlp", choices=choices("model"))
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {arguments.repeats}")
    with commands.importing():  # seconds, once the command line was read
        import torch
        from rich.progress import track

        from experiments.validation import bench_gpt
        from experiments.validation.bench_algorithms import measure, plans_of, print_table
        from host.command_line.console import Console
    if arguments.gpt:
        bench_gpt.print_table(bench_gpt.measure(GPT_STEPS * arguments.repeats))
        return 0
    torch.set_num_threads(1)
    plans = plans_of(arguments.model)
    data = next(iter(plans.values())).task.load()
    overheads: dict[str, list[float]] = {name: [] for name in plans}
    state_bytes: dict[str, int] = {}
    for _ in track(range(arguments.repeats), "rounds", console=Console(stderr=True)):
        for name, plan in plans.items():
            differences, state_bytes[name] = measure(plan, data)
            overheads[name].append(1e3 * statistics.mean(differences))
    model_bytes = sum(4 * p.numel() for p in plans["allreduce"].model.parameters())
    print_table(
        overheads, {name: n / model_bytes for name, n in state_bytes.items()}, arguments.model
    )
    return 0


if __name__ == "__main__":
    commands.run(main)
