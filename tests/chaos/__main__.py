"""Does a command end well whatever is done to it? Runs on real and simulated workers, sweeps,
torchrun, advice and reports are killed, stopped, cut off, and run out of disk and memory.

    python -m tests.chaos                          100 cases, from a new seed
    python -m tests.chaos --seed 17 --count 1      one again, with all that it printed
    python -m tests.chaos --count 1000 --table results/chaos/cases.jsonl --jobs 2

Each case has a room of its own (`tests.chaos.room`): what is left there is the case's. Afterwards
the command is given again, or its run resumed, and must come to the values of one that nothing was
done to. A case that is in the table already is left out, so the same command goes on with what was
stopped. Only root can make such rooms.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from host.processes import fork, kill
from tests.chaos import clock
from tests.chaos.case import draw


def main() -> int:
    """The command line; returns the exit code: 0 where nothing is wrong with any case."""
    options = _options()
    seeds = range(options.seed, options.seed + options.count)
    if any(draw(seed).strike == "clock" for seed in seeds):
        clock.begin_again_with_clock()
    from tests.chaos.trial import import_all, try_case  # takes seconds

    known = _rows(options.table)
    todo = [seed for seed in seeds if seed not in known]
    print(f"{len(seeds)} cases from seed {options.seed} on, {len(todo)} to do", flush=True)
    import_all()
    stop_s = time.monotonic() + 60 * options.minutes
    jobs: dict[int, int] = {}
    with _scratch() as scratch, _ended(jobs):
        while (todo and time.monotonic() < stop_s) or jobs:
            while todo and len(jobs) < options.jobs and time.monotonic() < stop_s:
                seed = todo.pop(0)
                jobs[fork(lambda seed=seed: try_case(draw(seed), scratch))] = seed
            pid, status = os.wait()
            seed = jobs.pop(pid)
            known[seed] = _row(scratch, seed, status)
            _keep(options.table, known[seed])
            _show(known[seed], in_full=options.count == 1)
    return _sum_up([known[seed] for seed in seeds if seed in known])


@contextmanager
def _ended(jobs: dict[int, int]) -> Iterator[None]:
    """At the end no case goes on, whatever has stopped this command."""
    try:
        yield
    finally:
        for pid in jobs:
            kill(pid)


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder until the end; `TemporaryDirectory` would delete it at the end of any fork."""
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
        clock.forget()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--seed", type=int, default=int(time.time()) % 10**7 * 1_000)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--minutes", type=float, default=1e6, help="after which none is begun")
    parser.add_argument("--table", type=Path, help="a line of JSON for each case")
    return parser.parse_args()


def _rows(table: Path | None) -> dict[int, dict]:
    """Those of the table, by seed; its last line may be half written."""
    if table is None or not table.exists():
        return {}
    rows = [json.loads(line) for line in table.read_text().splitlines() if line.endswith("}")]
    return {row["seed"]: row for row in rows}


def _row(scratch: Path, seed: int, status: int) -> dict:
    file = scratch / f"{seed}.json"
    if status == 0 and file.exists():
        return json.loads(file.read_text())
    faults = [f"the case itself has failed, exit code {os.waitstatus_to_exitcode(status)}"]
    return {"seed": seed, "case": draw(seed).told(), "faults": faults}


def _keep(table: Path | None, row: dict) -> None:
    if table is not None:
        table.parent.mkdir(parents=True, exist_ok=True)
        kept = {key: value for key, value in row.items() if key != "printed"}
        with table.open("a") as file:
            file.write(json.dumps(kept) + "\n")


def _show(row: dict, *, in_full: bool) -> None:
    print(f"--seed {row['seed']} --count 1: {row['case']}: {row.get('outcome')}", flush=True)
    if in_full:
        print(row.get("printed"))
    for fault in row["faults"]:
        print(f"    FAULT {fault}", flush=True)


def _sum_up(rows: list[dict]) -> int:
    """Print counts of all; the exit code."""
    outcomes = Counter(row.get("outcome") for row in rows)
    num_faults = sum(bool(row["faults"]) for row in rows)
    counts = ", ".join(f"{n} {what}" for what, n in outcomes.most_common())
    print(f"{len(rows)} cases: {counts}; {num_faults} with a fault")
    return min(1, num_faults)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of what tidies up
    sys.exit(main())
