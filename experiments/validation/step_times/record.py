"""What was measured of cells, and all that their predictions need: so that every later model can be
held against the same measurements.

A file of JSON lines: first the machine, then a line for each rehearsal and the cells that share it.
Where cells have been measured again, their line says by what.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from bagua_algos.communication.communicator import Operation
from experiments.simulated.clocks import Script, by_profile
from experiments.simulated.profile import Profile
from experiments.validation.step_times.grid import Cell
from host.environment import environment
from host.errors import UserError
from host.output import writing
from netsim.timeline.timeline import TimelineJob

_PACKAGES = ("torch", "numpy")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One cell: what real workers took, and what its prediction knows.

    Args:
        cell: of the grid.
        backend: that shaped the network.
        step_s: mean seconds a step.
        profile: of the rehearsal of one worker.
        script: the jobs of the first steps.
        again: the machine, as `this_machine` tells it, where it was measured later than the others.
    """

    cell: Cell
    backend: str
    step_s: float
    profile: Profile
    script: Script
    again: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Record:
    """Cells, and the machine that they were measured on: cpu, cores, packages, what else it did."""

    machine: Mapping[str, Any]
    cells: list[Measured]

    def save(self, path: Path) -> None:
        """Write it; neighbours of one rehearsal share a line. Raises `DiskError`."""
        groups = [list(group) for _, group in groupby(self.cells, _rehearsal)]
        lines = [dict(self.machine), *(_group(group) for group in groups)]
        with writing(path):
            path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def with_again(self, measured: Measured, machine: Mapping[str, Any]) -> "Record":
        """The record with a cell of it measured again by `machine`; it stands last."""
        kept = [one for one in self.cells if one.cell != measured.cell]
        return replace(self, cells=[*kept, replace(measured, again=machine)])

    @classmethod
    def load(cls, path: Path) -> "Record":
        """Read it. Raises `UserError` for what is none."""
        try:
            machine, *groups = map(json.loads, path.read_text().splitlines())
            machine["cores"]
            cells = [measured for group in groups for measured in _cells(**group)]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(
                f"{path} holds no measured step times ({error}): make it by "
                "python -m experiments.validate --out FOLDER"
            ) from error
        return cls(machine=machine, cells=cells)


def this_machine(beside: str) -> dict[str, Any]:
    """What measured; `beside`: what else ran there, in words."""
    here = environment()
    packages = {name: here["packages"][name] for name in _PACKAGES}
    kept = {name: here[name] for name in ("cpu", "cores", "kernel", "git_commit", "started")}
    return kept | {"packages": packages, "beside": beside}


def _rehearsal(one: Measured) -> tuple[Any, ...]:
    """What neighbours on a line have in common."""
    return one.cell[:3], one.profile, one.again


def _group(cells: Sequence[Measured]) -> dict[str, Any]:
    first = cells[0]
    steps: dict[int, int] = {}
    order = [steps.setdefault(id(jobs), len(steps)) for jobs in first.script]
    kinds = [first.script[order.index(index)] for index in range(len(steps))]
    return {
        **dict(zip(("algo", "model", "workers"), first.cell[:3], strict=True)),
        "profile": first.profile.plain(),
        "steps": [[_plain_job(job, first.cell.workers) for job in jobs] for jobs in kinds],
        "order": order,
        "cells": [[*one.cell[3:], one.backend, float(f"{one.step_s:.6g}")] for one in cells],
    } | ({} if first.again is None else {"again": dict(first.again)})


def _cells(
    *,
    algo: str,
    model: str,
    workers: int,
    profile: dict[str, Any],
    steps: list[list[dict[str, Any]]],
    order: list[int],
    cells: list[list[Any]],
    again: Mapping[str, Any] | None = None,
) -> Iterable[Measured]:
    known = Profile.from_plain(profile)
    kinds = [tuple(_job(workers=workers, **job) for job in jobs) for jobs in steps]
    script = by_profile([kinds[index] for index in order], known)
    for *words, backend, step_s in cells:
        cell = Cell(algo, model, workers, *words)
        yield Measured(
            cell=cell, backend=backend, step_s=step_s, profile=known, script=script, again=again
        )


def _plain_job(job: TimelineJob, workers: int) -> dict[str, Any]:
    operations = [
        {"name": part.name, "num_bytes": part.num_bytes}
        | ({} if part.ranks == tuple(range(workers)) else {"ranks": part.ranks})
        | ({} if part.peers is None else {"peers": part.peers})
        for part in job.work
        if isinstance(part, Operation)
    ]
    return {"moment": job.moment, "bucket": job.bucket, "operations": operations}


def _job(
    *, moment: Any, bucket: int | None, operations: list[dict[str, Any]], workers: int
) -> TimelineJob:
    """Without its kernels, which are the profile's."""
    work = tuple(
        Operation(
            name=one["name"],
            num_bytes=one["num_bytes"],
            ranks=tuple(one.get("ranks", range(workers))),
            peers=tuple(one["peers"]) if "peers" in one else None,
        )
        for one in operations
    )
    return TimelineJob(moment=moment, bucket=bucket, work=work)
