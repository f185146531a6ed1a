"""Measures what BAGUA's other systems save: `python -m experiments.bench_systems`."""

# Each system imports what it measures, which takes seconds, once the command line was read.

import argparse
import tempfile
from collections import defaultdict
from itertools import count, product
from pathlib import Path

from experiments.plan.messages import choices
from host import commands
from host.command_line.parser import Parser
from host.errors import UserError


def main() -> int:
    """Measure and print; returns the exit code."""
    parser = Parser(
        prog=commands.program("experiments.bench_systems"),
        description=commands.as_called(__doc__).split("\n")[0],
    )
    parser.add_argument("systems", nargs="*", help=f"of {', '.join(SYSTEMS)} (default all)")
    parser.add_argument("--repeats", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--experiment", default="spoken_digits", help="for balanced and lengths")
    parser.add_argument(
        "--steps",
        type=int,
        help="for autotune (a multiple of 10), balanced, lengths and reading; by default their own",
    )
    nets = choices("net")
    parser.add_argument(
        "--nets",
        nargs="+",
        choices=nets,
        help="for streams, auto, pieces and autotune; by default their own",
    )
    parser.add_argument("--models", nargs="+", help="for autotune (default all)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="for optimizer")
    parser.add_argument(
        "--short", action="store_true", help="for autotune: a grid of five settings"
    )
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {arguments.repeats}")
    if unknown := set(arguments.systems) - set(SYSTEMS):
        parser.error(f"there is no system {unknown.pop()}: choose of {', '.join(SYSTEMS)}")
    if arguments.device == "cuda":
        import torch

        if not torch.cuda.is_available():
            parser.error("--device cuda needs an NVIDIA GPU, and torch finds none")
    if arguments.models:
        from experiments.validation.bench_autotune import MODELS

        if unknown := set(arguments.models) - set(MODELS):
            parser.error(f"there is no model {unknown.pop()}: choose of {', '.join(MODELS)}")
    for name in arguments.systems or SYSTEMS:
        SYSTEMS[name](arguments)
    return 0


def autotune(arguments: argparse.Namespace) -> None:
    """Whole runs of 4 workers by the defaults, tuned, and by a grid, in turn."""
    from experiments.validation import bench_autotune
    from experiments.validation.rounds import print_rounds
    from host.command_line.console import track

    nets: list[str] = arguments.nets or list(bench_autotune.NETS)
    models: list[str] = arguments.models or list(bench_autotune.MODELS)
    situations = [(model, net) for model in models for net in nets]
    measured = {situation: defaultdict(list) for situation in situations}
    last: int = arguments.steps or bench_autotune.LAST_STEPS
    if last % bench_autotune.LOG_EVERY:
        every = bench_autotune.LOG_EVERY
        raise UserError(f"--steps of autotune must be a multiple of {every}, got {last}")
    cases = bench_autotune.cases(is_short=arguments.short, last_steps=last)
    heats, num_far = bench_autotune.heats(cases), {}
    with tempfile.TemporaryDirectory() as folder:
        numbers = count()

        def run(model: str, net: str, words: list[str], seed: int, steps: int) -> dict[str, float]:
            own = [*bench_autotune.MODELS[model], *words, f"net={net}", f"seed={seed}"]
            return bench_autotune.measure(own, Path(folder) / str(next(numbers)), steps)

        for at in situations:
            heat = {
                case: run(*at, words, 0, bench_autotune.HEAT_STEPS)["ms"]
                for case, words in track(heats.items(), f"heat: {', '.join(at)}")
            }
            own = [*(case for case in cases if case not in heat), *bench_autotune.goes_on(heat)]
            num_far[at] = len(cases) - len(own)
            rounds = list(product(range(arguments.repeats), own))
            for seed, case in track(rounds, f"interleaved runs: {', '.join(at)}"):
                measured[at][case].append(run(*at, cases[case], seed, last))
    rows = bench_autotune.rows(measured, num_far)
    print_rounds(f"autotuning: the last {last} steps, 4 workers", rows)


def balanced(arguments: argparse.Namespace) -> None:
    """Whole runs of 4 workers, in turn."""
    from experiments.validation import bench_balanced
    from experiments.validation.rounds import print_rounds
    from host.command_line.console import track

    words = [f"experiment={arguments.experiment}"]
    words += [] if arguments.steps is None else [f"max_steps={arguments.steps}"]
    measured = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for repeat in track(range(arguments.repeats), "interleaved runs"):
            for number, (case, overrides) in enumerate(bench_balanced.CASES.items()):
                run = Path(folder) / f"{repeat}_{number}"
                own = [*words, *overrides, f"seed={repeat}"]
                measured[case].append(bench_balanced.measure(own, run))
    print_rounds(f"balanced loading: 4 workers, {' '.join(words)}", bench_balanced.rows(measured))


def cache(arguments: argparse.Namespace) -> None:
    """Epochs over slow examples, then entries, the stores in turn."""
    from experiments.validation import bench_cache
    from experiments.validation.rounds import print_rounds
    from host.command_line.console import track

    rows = defaultdict(list)
    with bench_cache.stores() as makers:
        for repeat in track(range(arguments.repeats), "interleaved epochs"):
            for name, make in {"no cache": lambda: None, **makers}.items():
                times_s = bench_cache.epochs_s(make(), f"{name} {repeat}")
                for epoch, seconds in enumerate(times_s, 1):
                    rows[f"{name}: s, epoch {epoch}"].append(seconds)
                rows[f"{name}: epoch 1 / epoch 2"].append(times_s[0] / times_s[1])
        for _ in track(range(arguments.repeats), "interleaved entries"):
            for num_bytes in bench_cache.ENTRY_BYTES:
                for name, make in makers.items():
                    write_us, read_us = bench_cache.entry_us(make(), num_bytes)
                    rows[f"{name}: us to write {num_bytes} bytes"].append(write_us)
                    rows[f"{name}: us to read {num_bytes} bytes"].append(read_us)
    title = "cached data set: 2,000 examples of 5 ms, 4 processes"
    print_rounds(title, dict(sorted(rows.items())))


def lengths(arguments: argparse.Namespace) -> None:
    """Steps of one worker without the others, the cases in turn."""
    import torch

    from experiments.validation import bench_balanced
    from experiments.validation.rounds import print_rounds
    from host.command_line.console import track

    torch.set_num_threads(1)
    words = [f"experiment={arguments.experiment}"]
    took_ms = defaultdict(list)
    with bench_balanced.steppers(words) as steppers:
        for number in track(range(arguments.steps or 20), "interleaved steps"):
            for case, take in steppers.items():
                took_ms[case].append(take(number))
    title = f"processor time of a step without communication, {words[0]}"
    print_rounds(title, bench_balanced.length_rows(took_ms))


def optimizer(arguments: argparse.Namespace) -> None:
    """Steps of many small parameters, the ways in turn."""
    import torch

    from experiments.validation import bench_optimizer
    from experiments.validation.rounds import print_rounds
    from host.command_line.console import track

    torch.set_num_threads(1)
    rows = defaultdict(list)
    cases = [(name, size) for name in bench_optimizer.OPTIMIZERS for size in bench_optimizer.SIZES]
    for _ in track(range(arguments.repeats), "interleaved steps"):
        for name, size in cases:
            took_ms = bench_optimizer.measure(name, size, arguments.device)
            case = f"{name}, {bench_optimizer.NUM_PARAMETERS} of {size}"
            for way, ms in took_ms.items():
                rows[f"{case}: ms, {way}"].append(ms)
            for way in ("loop", "foreach=True", "fused=True"):
                if way in took_ms:
                    rows[f"{case}: {way} / ours"].append(took_ms[way] / took_ms["ours"])
    where = torch.cuda.get_device_name() if arguments.device == "cuda" else "one thread"
    print_rounds(f"fused optimizer: milliseconds a step, {where}", rows)


def streams(arguments: argparse.Namespace) -> None:
    """Whole runs of 4 workers over several networks, in turn."""
    from experiments.validation.rounds import print_rounds
    from experiments.validation.streams import bench_streams
    from host.command_line.console import track

    measured = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        cases = list(product(arguments.nets or bench_streams.NETS, bench_streams.CASES))
        for repeat in track(range(arguments.repeats), "interleaved runs"):
            for number, (net, case) in enumerate(cases):
                own = [*bench_streams.CASES[case], f"net={net}", f"seed={repeat}"]
                run = Path(folder) / f"{repeat}_{number}"
                measured[net, case].append(bench_streams.measure(own, run))
    title = "streams: seconds to accuracy, 4 workers, mnist5k, cnn"
    print_rounds(title, bench_streams.rows(measured))


def reading(arguments: argparse.Namespace) -> None:
    """Batches of the same digits, the readers in turn, then whole runs of 4 workers, in turn."""
    import torch

    from experiments.validation import bench_reading
    from experiments.validation.rounds import print_rounds
    from host.command_line.console import track

    torch.set_num_threads(1)  # runs fork
    rows = defaultdict(list)
    splits = bench_reading.splits()
    for _ in track(range(arguments.repeats), "interleaved readers"):
        for name, loaders in bench_reading.READERS.items():
            per_s = bench_reading.examples_per_s(splits[name], loaders)
            rows[f"examples/s, {name}"].append(per_s)
    for _ in track(range(arguments.repeats), "interleaved runs"):
        for name, words in bench_reading.RUNS.items():
            share = bench_reading.waiting_share(words, arguments.steps or 100)
            rows[f"% of a step that waits for examples, 4 workers, {name}"].append(share)
    print_rounds("reading: digits of mnist5k, batches of 32, cnn", rows)


def auto(arguments: argparse.Namespace) -> None:
    """What `streams=auto` chooses over several networks, in turn."""
    from experiments.validation.rounds import print_rounds
    from experiments.validation.streams import bench_streams
    from host.command_line.console import track

    measured = defaultdict(list)
    for _ in track(range(arguments.repeats), "interleaved trials"):
        for net in arguments.nets or bench_streams.NETS:
            streams, seconds = bench_streams.try_auto(net)
            measured[f"{net}: streams chosen"].append(streams)
            measured[f"{net}: s"].append(seconds)
    print_rounds("streams=auto: trials of 4 new workers", dict(sorted(measured.items())))


def pieces(arguments: argparse.Namespace) -> None:
    """Exchanges and all-to-alls of 4 workers over several networks, equal parts and pieces in turn;
    a table of Markdown.
    """
    from experiments.validation.rounds import measured_by
    from experiments.validation.streams import bench_pieces
    from host.command_line.console import track
    from netsim.errors import NamespaceError

    measured = {}
    try:
        for net in track(arguments.nets or bench_pieces.NETS, "networks", transient=True):
            measured[net] = bench_pieces.measure(net, arguments.repeats)
    except NamespaceError as error:
        raise UserError(str(error)) from error
    print(f"ms, the slowest of 4 workers, 8 streams; {measured_by(arguments.repeats)}:\n")
    print(bench_pieces.table(measured))


SYSTEMS = {
    "auto": auto,
    "autotune": autotune,
    "balanced": balanced,
    "cache": cache,
    "lengths": lengths,
    "optimizer": optimizer,
    "pieces": pieces,
    "reading": reading,
    "streams": streams,
}


if __name__ == "__main__":
    commands.run(main)
