"""How fast the plugin is over a network, without a GPU: its function table, driven by two workers.

    python -m bagua_net.bench net=wan workers=2 [net.KEY=VALUE...] [rounds=3] [mbytes=64]
                              [message=64] [in_flight=1]
                              [cases=1,8,8-static,8-slowed,8-static-slowed,auto]

A case is a number of streams; "static" cuts each message in equal parts, one a stream, as NCCL's
own sockets do; "8-512k" has chunks of 512 KiB, whatever a stream's rate; "slowed" paces one stream
at a tenth of its share; "auto" is what the environment leaves to be measured; "iperf3-8" is iperf3
with so many streams, where it is installed. Every round makes a new connection for every case and
sends `mbytes` MiB: one message, or messages of `message` MiB, of which `in_flight` are under way.
NCCL's own are `message=1 in_flight=4`. Goodput is that of the messages alone, and of the link what
is left for payload in full frames. "x the first" is the median over the rounds. Processor time is
of both workers together.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from operator import truediv
from statistics import median

from bagua_net.cases import DEFAULTS, Case, Load, Sample, measure, parse_case, path
from host import commands, markdown
from host.errors import UserError
from netsim.conditions.command_line import read_words
from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import wire_per_payload
from netsim.errors import NamespaceError, ProbeError


def main() -> int:
    """Measure and print; returns the exit code."""
    words = sys.argv[1:]
    if words in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    condition, cases, rounds, load = parse(words)
    message = f"messages of {load.message_bytes / 2**20:g} MiB"
    print(f"{' '.join(words)}: {message}, medians of {rounds} interleaved rounds")
    try:
        samples = measure(condition, cases, rounds, load)
    except (NamespaceError, ProbeError) as error:
        raise UserError(str(error)) from error
    print(table(condition, samples))
    return 0


def parse(words: Sequence[str]) -> tuple[NetworkCondition, list[Case], int, Load]:
    """Network, cases, rounds and load of a command line.

    Raises:
        UserError: for a word that is not understood.
    """
    defaults = {"workers": "2", "rounds": "3", "mbytes": "64", "cases": DEFAULTS}
    defaults |= {"message": "", "in_flight": "1"}
    try:
        condition, values = read_words(words, defaults, command="bagua_net.bench")
        rounds, mbytes = int(values["rounds"]), float(values["mbytes"])
        message = float(values["message"] or mbytes)
        if rounds < 1 or not 0 < mbytes <= 1024 or not 0 < message < math.inf:
            raise ValueError(
                "rounds must be at least 1, mbytes more than 0 and at most 1024, "
                "and message a finite number above 0."
            )
        load = Load(
            num_bytes=round(mbytes * 2**20),
            message_bytes=round(message * 2**20),
            in_flight=int(values["in_flight"]),
        )
        cases = [parse_case(name) for name in values["cases"].split(",")]
    except ValueError as error:
        raise UserError(str(error)) from error
    if values["workers"] != "2":
        raise UserError("One connection joins two workers: leave workers=2.")
    return condition, cases, rounds, load


def table(condition: NetworkCondition, samples: Mapping[str, Sequence[Sample]]) -> str:
    """One row a case: goodput with its spread, its part of the link, ratios and processor time."""
    rows, first = [], [sample.mbit for sample in next(iter(samples.values()))]
    rate = path(condition).rate_mbit
    for name, measured in samples.items():
        mbit = [sample.mbit for sample in measured]
        share = median(mbit) * wire_per_payload(condition.mtu) / rate if rate else None
        row = (
            name,
            f"{median(mbit):.4g} ({min(mbit):.4g} to {max(mbit):.4g})",
            "-" if share is None else f"{100 * share:.1f} %",
            f"{median(map(truediv, mbit, first)):.2f}",
            f"{median([sample.cpu_s_per_gb for sample in measured]):.2f}",
            measured[-1].choice or "-",
        )
        rows.append(row)
    head = ("case", "Mbit/s", "of the link", "x the first", "processor s/GB", "chosen")
    return markdown.table(head, rows, "lrrrrl")


if __name__ == "__main__":
    commands.run(main)
