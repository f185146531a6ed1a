"""Bench of several streams: seconds to the task's accuracy, beside torch DDP with one stream; and
what `streams=auto` chooses.
"""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.communication.streams import try_streams
from experiments.runs.summary import read_fields
from experiments.validation.collectives import run_gloo_workers
from netsim.conditions.presets import read_condition

NETS = ("lossy", "wan", "slow_tcp", "lan_1g", "none")
THEIRS = "torch DDP"
CASES = {
    THEIRS: ["algo=torch_ddp"],
    "torch DDP, 8 streams": ["algo=torch_ddp", "streams=8"],
    "all-reduce": ["algo=allreduce"],
    "all-reduce, 8 streams": ["algo=allreduce", "streams=8"],
}
"""What is measured, and its overrides."""

LIMIT_S = 600
NUM_WORKERS = 4
TRIAL_LIMIT_S = 60.0


def measure(overrides: Sequence[str], folder: Path) -> float:
    """Seconds to accuracy of a run of 4 workers; inf where it missed."""
    command = [
        *(sys.executable, "-m", "experiments", *overrides),
        *("stop_at_target=true", f"hydra.run.dir={folder}"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{ended.stdout}{ended.stderr}")
    seconds = read_fields(folder)["time_to_accuracy_s"]
    return float("inf") if seconds is None else seconds


def try_auto(net: str) -> tuple[int, float]:
    """The number of streams that 4 new workers choose, and the seconds of the slowest from when all
    had come. Raises `NamespaceError` where the network cannot be made.
    """

    def work(communicator: ProcessGroupCommunicator) -> tuple[int, float]:
        communicator.all_gather(torch.zeros(1, 1))  # all have come
        started_s = time.perf_counter()
        chosen = try_streams(communicator).streams
        took_s = torch.tensor([[time.perf_counter() - started_s]])
        return chosen, float(communicator.all_gather(took_s).max())

    results = run_gloo_workers(read_condition(net), NUM_WORKERS, work, limit_s=TRIAL_LIMIT_S)
    chosen, seconds = zip(*results.values, strict=True)
    assert len(set(chosen)) == 1, chosen
    return chosen[0], max(seconds)


def rows(measured: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, list[float]]:
    """Of the seconds by network and case: these, and how many times as fast as torch DDP with one
    stream, round by round.
    """
    made = {f"{net}: s, {case}": list(seconds) for (net, case), seconds in measured.items()}
    for (net, case), seconds in measured.items():
        if case != THEIRS:
            pairs = zip(measured[net, THEIRS], seconds, strict=True)
            made[f"{net}: {THEIRS} / {case}"] = [theirs / ours for theirs, ours in pairs]
    return dict(sorted(made.items()))
