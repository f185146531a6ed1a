"""A run of which torchrun or srun has started the processes, on one machine or several.

Each process is a worker, and worker 0 keeps the record, in a folder that all of them see. A process
that dies ends the others; started again, the run goes on in its folder from its last checkpoint,
with as many workers as there are then.
"""

import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from experiments.plan.factory import make_plan
from experiments.plan.identity import plain
from experiments.plan.overrides import values_of
from experiments.plan.plan import Plan
from experiments.real.assignment import Assignment
from experiments.real.failures import RunFailedError
from experiments.real.network import ShapedNetwork
from experiments.real.peers import Peers
from experiments.real.torchrun import check_assigned, work_as_peer
from experiments.runs.folder_lock import PATIENCE_S, hold_alone
from experiments.runs.resume import FREE, check_same
from experiments.runs.run import Recorder, known_summary, load_data
from experiments.runs.study import Standing, read_record
from experiments.tasks.base import Split, TaskData
from experiments.tasks.samplers import InOrder, Shuffled
from experiments.training.checkpoints.places import newest
from experiments.training.metrics import MetricsRow
from experiments.training.result import DivergedError, Result
from host.errors import UserError
from host.output import ANOTHER_RUN_DIR

AGAIN_PATIENCE_S = 45.0
"""How long worker 0 of a restart waits for the folder: the processes before it are dead, but a file
server frees the lock of a lost machine after its lease, mostly 90 s, which two restarts outlast.
Less than the time for which the others wait for its word.
"""


def shared_arguments(peers: Peers, given: Sequence[str]) -> list[str]:
    """The command line `given` with what the starter has decided: how many workers, and one
    folder for all processes, also when they are started again.

    Raises `UserError` for one that cannot be.
    """
    own, values = peers.assignment, values_of(given)
    if {"-m", "--multirun"} & set(given):
        raise UserError(f"{own.starter} starts one run: leave it out, or leave out -m")
    num_workers = str(own.world_size)
    if values.get("workers", num_workers) != num_workers:
        raise UserError(
            f"workers={values['workers']}, but {own.starter} has started "
            f"{num_workers}: leave workers out"
        )
    if "hydra.run.dir" not in values and not (own.run_id or own.has_store):
        raise UserError(
            "nothing names this run's folder, in which all its processes meet: give torchrun "
            "--rdzv-id=NAME, or hydra.run.dir=..."
        )
    folder = f"results/runs/{own.run_id or f'{peers.started}_{own.starter}'}"
    fixed = {"workers": num_workers, "hydra.run.dir": f"'{folder}'"}
    return [*given, *(f"{key}={value}" for key, value in fixed.items() if key not in values)]


def run_as_peer(config: DictConfig, folder: Path, overrides: Sequence[str], peers: Peers) -> str:
    """Run `config` as one of the workers of `peers`; returns the status that the record has.

    Raises `UserError` where it cannot be run so.
    """
    torch.set_num_threads(1)
    is_first = peers.assignment.rank == 0
    try:
        plan = _on_machines(make_plan(config, folder), peers.assignment)
        data = load_data(plan)
        if is_first:
            patience_s = AGAIN_PATIENCE_S if peers.assignment.num_restarts else PATIENCE_S
            with hold_alone(plan.folder, patience_s):
                return _lead(plan, plain(config), overrides, data, peers)
    except UserError as error:
        if is_first:
            peers.say({"refused": str(error)})
        raise
    return _follow(plan, data, peers)


def _on_machines(plan: Plan, assignment: Assignment) -> Plan:
    """The plan, whose network is no other run's."""
    check_assigned(plan, assignment)
    hosts = "1 host" if assignment.num_hosts == 1 else f"{assignment.num_hosts} hosts"
    return replace(plan, names=plan.names | {"net": f"own network, {hosts}"})


def _lead(
    plan: Plan, config: dict[str, Any], overrides: Sequence[str], data: TaskData, peers: Peers
) -> str:
    """Worker 0's part: decide where to begin, tell the others, train and keep the record."""
    record = read_record(plan.folder, is_held=False)
    goes_on = record is not None and record.standing is not Standing.DONE
    if record is not None and not goes_on and peers.assignment.num_restarts:
        peers.say({"status": record.status})  # a worker died after the end
        return record.status
    if goes_on and not (plan.folder / "config.yaml").exists():
        _make_room(plan.folder)
        goes_on = False
    if goes_on:
        plan = _continued(plan, config)
    summary = replace(
        known_summary(plan, data),
        started_by=peers.assignment.starter,
        hosts=peers.assignment.num_hosts,
        shared_gpu=False,
    )

    def start(
        plan: Plan,
        data: TaskData,
        on_network: Callable[[ShapedNetwork | None], None],
        on_row: Callable[[MetricsRow], None],
    ) -> list[Result]:
        on_network(None)
        return work_as_peer(plan, data, peers, on_row)

    recorder = Recorder(plan, config, overrides, start, summary, goes_on=goes_on)
    resume = None if plan.resume is None else str(plan.resume)
    peers.say({"resume": resume, "step": plan.resume_step, **_told_data(plan, data)})
    return recorder.run(data)


def _make_room(folder: Path) -> None:
    """Where worker 0 died while it began the record. Raises `UserError` where more is there."""
    left = list(folder.iterdir())
    if not {file.name for file in left} <= _BEGUN:
        raise UserError(
            f"{folder} has files, but no config.yaml of a run: choose {ANOTHER_RUN_DIR} or empty it"
        )
    for file in left:
        file.unlink()


def _continued(plan: Plan, config: dict[str, Any]) -> Plan:
    """`plan` from the last checkpoint of the run that its folder holds.

    Raises `UserError` where that is another run.
    """
    check_same(config, plan.folder, (*FREE, "workers"))
    step = newest(plan.folder)
    return plan if step is None else replace(plan, resume=plan.folder, resume_step=step)


def _follow(plan: Plan, data: TaskData, peers: Peers) -> str:
    """Another worker's part. Raises `UserError` where it has other examples than worker 0."""
    own = _told_data(plan, data)  # at the time when worker 0 reads its own
    try:
        word = peers.hear()
    except RunFailedError as error:
        print(error, file=sys.stderr)
        return "failed"
    if "refused" in word:
        raise UserError(word["refused"])
    if "status" in word:
        return word["status"]
    rank = peers.assignment.rank
    _check_examples(own["examples"], word["examples"], rank)
    if own["order"] != word["order"]:
        raise UserError(
            f"worker {rank} takes the training examples in another order than worker 0: give all "
            "workers the same classes, sources and lengths of the examples"
        )
    resume = None if word["resume"] is None else Path(word["resume"])
    plan = replace(plan, resume=resume, resume_step=word["step"])
    try:
        work_as_peer(plan, data, peers, lambda row: None)
    except DivergedError:
        return "diverged"
    except RunFailedError as error:
        print(error, file=sys.stderr)
        return "failed"
    return "completed"


_BEGUN = {"summary.json", "summary.json.tmp", "config.yaml.tmp"}
"""What a record has before its config.yaml."""
_NUM_TOLD = 16
"""Examples of a split by whose labels workers see whether they have the same."""
_PLACES_TOLD = 64
"""Of a label that has several, those that are compared."""


def _told_data(plan: Plan, data: TaskData) -> dict[str, Any]:
    return {"examples": told_examples(data), "order": told_order(plan, data)}


def told_order(plan: Plan, data: TaskData) -> str:
    """What stands for which examples each worker takes in the first epoch: by it workers compare
    whatever examples are shared out by, such as all sources. Empty where that is the number alone.
    """
    batches = plan.batches(data, (0,))
    if isinstance(batches.order, Shuffled | InOrder):
        return ""
    sizes = batches.num_examples, plan.workers, plan.batch_size, plan.seed
    places = np.ascontiguousarray(batches.order.epoch(*sizes, 0))
    return hashlib.sha256(places.data).hexdigest()


def told_examples(data: TaskData) -> list[list[float]]:
    """By what workers compare their examples: of each split its length, and the first places of the
    labels of examples here and there; of a stream, of the first ones.
    """
    return [_told(split) for split in (data.train, data.validation, data.test)]


def _told(split: Split) -> list[float]:
    last = min(_NUM_TOLD, len(split)) if split.is_stream else len(split)
    places = np.linspace(0, last - 1, min(_NUM_TOLD, len(split))).astype(np.int64)
    _, y_wb = split.batch(places[None])
    return [len(split), *y_wb.reshape(len(places), -1)[:, :_PLACES_TOLD].flatten().tolist()]


def _check_examples(own: list[list[float]], first: list[list[float]], rank: int) -> None:
    """Raise `UserError` where they differ by more than rounding."""
    for one, other in zip(own, first, strict=True):
        if len(one) != len(other) or not np.allclose(one, other, equal_nan=True):
            raise UserError(
                f"worker {rank} has other examples than worker 0: have the Dataset list them in "
                "one order, as sorted() does, and draw by torch's, NumPy's or Python's generator"
            )
