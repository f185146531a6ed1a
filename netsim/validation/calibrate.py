"""The constants of `Transport`, fitted to what gloo takes on this host.

    python -m netsim calibrate --out gloo.yaml [--workers 4]      measures, in some ten minutes
    python -m netsim calibrate --out gloo.yaml --fit gloo.csv     fits measurements once more
    python -m netsim calibrate --messages                         few bytes of 2 to 32 workers
    python -m netsim calibrate --processor                        what messages take of processors
    python -m netsim calibrate --queues --out queues.csv          short queues, beside predictions
    python -m netsim calibrate --queues --fit queues.csv          the same of measurements

What a message costs shows in operations of few bytes between many workers, which are measured after
all others, or alone. Without them `local_messages_per_s` stays as it is. Short queues tell none of
these constants: they are measured for `netsim.timeline.tcp.short_queues`, whose constants stay. Nor
is anything fitted to processor time: `switch_bytes_per_s` is what that says, as it is written.

Least squares of log(predicted / measured) over the networks that are fitted, outliers damped. The
errors over the others, which no constant has seen, tell how good the predictions are. What was
measured is written beside the constants, as CSV.
"""

import argparse
import math
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from datetime import date
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
import yaml

from host import commands
from host.command_line.parser import Parser
from host.output import check_folder, writing
from netsim.timeline.cost_model import CostModel, PlainOperation
from netsim.timeline.lanes import steady_s
from netsim.timeline.transport import GLOO, Transport
from netsim.validation import gloo_measurements, processor
from netsim.validation.gloo_measurements import Measurement, UniformNetwork

FITTED = {
    "operation_s": (1e-6, 1e-4, 5e-3),
    "local_bytes_per_s": (1e8, 3e9, 1e11),
    "switch_messages_per_s": (1e3, 2e4, 1e7),
    "straggling_bytes": (1e3, 1e5, 1e7),
}
"""The least, a guess and the most. `bytes_per_s` is one processor's part of `local_bytes_per_s`."""

OF_MESSAGES = {"local_messages_per_s": (1e3, 4e4, 1e7)}
"""The same, where several numbers of workers were measured; `messages_per_s` is a processor's part.
"""

OUTLIER = 0.2
"""Relative error above which a measurement weighs less."""


def main(arguments: Sequence[str]) -> int:
    """The command line; returns the exit code."""
    parser = Parser(prog=f"{commands.program('netsim')} calibrate")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the constants there; of queues, the times"
    )
    parser.add_argument("--workers", type=int, default=4, help="how many (default 4)")
    parser.add_argument(
        "--messages", action="store_true", help="measure what messages cost, and nothing else"
    )
    parser.add_argument(
        "--queues", action="store_true", help="measure short queues, and nothing else"
    )
    parser.add_argument(
        "--processor", action="store_true", help="measure processor time, and nothing else"
    )
    parser.add_argument("--fit", type=Path, metavar="FILE.csv", help="measured before")
    options = parser.parse_args(arguments)
    if options.workers < 3:
        parser.error(f"--workers has to be at least 3, not {options.workers}")
    if options.out is not None:
        check_folder(options.out.parent)
    if options.queues:
        return _queues(options)
    if options.processor:
        print("\n".join([_host(), *processor.lines(list(processor.measure(report=_say)))]))
        return 0
    if options.fit is None:
        measurements = [
            *([] if options.messages else gloo_measurements.measure(options.workers, report=_say)),
            *gloo_measurements.measure_messages(report=_say),
        ]
        if options.out is not None:
            with writing(options.out):
                gloo_measurements.write(options.out.with_suffix(".csv"), measurements)
    else:
        measurements = gloo_measurements.read(options.fit)
    transport = fit(measurements)
    lines = [
        _host(),
        *table(measurements, transport),
        *summary(measurements, transport),
        *untold(transport),
    ]
    text = constants_as_yaml(transport)
    print("\n".join([*lines, "", text]))
    if options.out is not None:
        comment = "".join(f"# {line}".rstrip() + "\n" for line in lines)
        with writing(options.out):
            options.out.write_text(comment + text)
    return 0


def _queues(options: argparse.Namespace) -> int:
    """Short queues, beside what the model says of them."""
    if options.fit is None:
        measurements = gloo_measurements.measure_queues(report=_say)
    else:
        measurements = gloo_measurements.read(options.fit)
    if options.out is not None:
        with writing(options.out):
            gloo_measurements.write(options.out, measurements)
    print("\n".join([_host(), *table(measurements, GLOO), *summary(measurements, GLOO)]))
    return 0


def predicted_s(measurement: Measurement, transport: Transport) -> float:
    """What the model says, for connections whose windows are open; behind token buckets, of one
    operation of many in a row.
    """
    size = measurement.num_workers
    model = _model(measurement.network, size, transport, measurement.backend)
    next_ranks = (*range(1, size), 0)
    operation = PlainOperation(
        name=measurement.name,
        num_bytes=measurement.num_bytes,
        ranks=tuple(range(size)),
        peers=next_ranks if measurement.name == "exchange" else None,
    )
    if measurement.backend == "tbf" and measurement.rate_mbit:
        return steady_s(model, operation)
    cost = model.cost(operation, model.at(0)[0])
    return float(np.max(cost.seconds) + np.max(cost.notice_s))


@lru_cache(maxsize=64)
def _model(network: UniformNetwork, size: int, transport: Transport, backend: str) -> CostModel:
    """One for all operations of a network: its links are worked out once."""
    return CostModel(network.condition, size, transport, backend=backend)


def error(measurement: Measurement, transport: Transport) -> float:
    """Of the prediction, relative; below 0 it is too fast."""
    return predicted_s(measurement, transport) / measurement.seconds - 1


def fit(measurements: Sequence[Measurement]) -> Transport:
    """Gloo's constants, to three digits. What the measurements cannot tell stays as in `GLOO`: all
    but the cost of messages if they are of few bytes alone, and this if they are of one number of
    workers.

    Raises:
        ValueError: if none of the measurements is to be fitted, or they tell nothing.
    """
    fitted = [measurement for measurement in measurements if measurement.is_fitted]
    if not fitted:
        raise ValueError("None of these measurements is to be fitted: set is_fitted of some.")
    if not _ranges(fitted):
        raise ValueError(
            "These measurements are of one network and one number of workers: add more."
        )
    num_processors = fitted[0].num_processors  # of one host all
    from scipy.optimize import least_squares  # takes a third of a second

    ranges = _ranges(fitted)
    low, guess, high = np.log(np.array(list(ranges.values()))).T
    limits = np.array([name.endswith("_bytes_per_s") for name in ranges])

    def errors(log_constants: np.ndarray) -> list[float]:
        transport = _transport(ranges, np.exp(log_constants), num_processors)
        return [math.log1p(error(measurement, transport)) for measurement in fitted]

    # A host that limits nothing has no gradient: begin on both sides of what a host may be.
    found = min(
        (
            least_squares(
                errors,
                guess + step * limits,
                bounds=(low, high),
                loss="soft_l1",
                f_scale=OUTLIER,
                diff_step=1e-3,
            )
            for step in (-1, 0, 1)
        ),
        key=lambda result: result.cost,
    )
    constants = [float(f"{value:.3g}") for value in np.exp(found.x)]
    return _transport(ranges, constants, num_processors)


def _ranges(measurements: Sequence[Measurement]) -> dict[str, tuple[float, float, float]]:
    """Of the constants that these measurements tell."""
    has_several_counts = len({m.num_workers for m in measurements}) > 1
    has_networks = len({m.network for m in measurements}) > 1
    return (FITTED if has_networks else {}) | (OF_MESSAGES if has_several_counts else {})


def constants_as_yaml(transport: Transport) -> str:
    """For `Transport(**yaml.safe_load(text))`."""
    return yaml.safe_dump(asdict(transport), sort_keys=False)


def table(measurements: Sequence[Measurement], transport: Transport) -> list[str]:
    """The error of each prediction in per cent: a line for each network and operation."""
    lines: dict[tuple[str, str], str] = {}
    for measurement in measurements:
        where = _where(measurement)
        key = (where, measurement.name)
        percent = f"{100 * error(measurement, transport):+.0f} %"
        line = lines.setdefault(key, f"{where:42}{measurement.name:16}")
        lines[key] = f"{line} {_size(measurement.num_bytes):>7} {percent:>6}"
    return list(lines.values())


def summary(measurements: Sequence[Measurement], transport: Transport) -> list[str]:
    """The size of each network's errors, and how the rounds differed."""
    sizes: dict[str, list[float]] = {}
    for measurement in measurements:
        sizes.setdefault(_where(measurement), []).append(abs(error(measurement, transport)))
    lines = [
        f"{where:42}half of the errors up to {100 * statistics.median(size):.0f} %, "
        f"nine in ten up to {100 * float(np.quantile(size, 0.9)):.0f} %"
        for where, size in sizes.items()
    ]
    spread = statistics.median(m.most_seconds / m.seconds - 1 for m in measurements)
    return [*lines, f"half of the measurements varied by over {100 * spread:.0f} % between rounds"]


def untold(transport: Transport) -> list[str]:
    """A line for each constant that the measurements did not tell."""
    return [
        f"{name} is at an end of its range: nothing measured tells it"
        for name, (least, _, most) in (FITTED | OF_MESSAGES).items()
        if not 1.01 * least < getattr(transport, name) < 0.99 * most
    ]


def _transport(names: Iterable[str], constants: Iterable[float], num_processors: int) -> Transport:
    values = {name: float(value) for name, value in zip(names, constants, strict=True)}
    for name in ("bytes_per_s", "messages_per_s"):
        if f"local_{name}" in values:
            values[name] = values[f"local_{name}"] / num_processors
    return replace(GLOO, **values)


def _where(measurement: Measurement) -> str:
    use = "fitted" if measurement.is_fitted else "held out"
    return f"{measurement.network} ({measurement.backend}, {use})"


def _size(num_bytes: int) -> str:
    for unit, name in ((1e6, "MB"), (1e3, "KB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:g} {name}"
    return f"{num_bytes} B"


def _host() -> str:
    load = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return (
        f"Fitted {date.today()} on Linux {platform.release()}, {os.cpu_count()} processors, "
        f"load {load}, torch {version('torch')}"
    )


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
