"""A training as the map sees it: two numbers without units, workers and loss.

rho     seconds that an ideal all-reduce of the gradients takes at the link's rate,
        2 (n - 1) / n * bytes / rate, for each second of compute
lambda  seconds of delay, one way, for each second of compute
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from host.errors import UserError
from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import MIN_RATE_MBIT

MAX_LOSS_PCT = 1.0
"""More was never compared with measurements."""

COMPUTE_MS, MODEL_MB = 180.0, 440.0
"""Of the map's own job: a step of 180 ms, and the float32 gradients of BERT-Base."""

_ENDLESS_MS = 1e9
_MBIT = 1e6 / 8
_MB = 1e6


@dataclass(frozen=True, kw_only=True)
class Job:
    """One training job.

    Args:
        compute_ms: of a step of one worker: forward, backward and the optimizer.
        model_mb: the bytes of all gradients in float32, in units of 10^6.
        workers: that train together, each behind a link of its own.
        rate_mbit: of each of these links.
        delay_ms: one way, from worker to worker.
        loss_pct: of packets.

    Raises:
        UserError: for a number that no job has, or that the map does not reach.
    """

    compute_ms: float
    model_mb: float
    workers: int
    rate_mbit: float
    delay_ms: float
    loss_pct: float = 0.0

    def __post_init__(self) -> None:
        for name in ("compute_ms", "model_mb"):
            _check_range(name, getattr(self, name), 1e-6, 1e9)
        _check_range("rate_mbit", self.rate_mbit, MIN_RATE_MBIT, 1e9)
        _check_range("delay_ms", self.delay_ms, 0, 1e5)
        _check_range("loss_pct", self.loss_pct, 0, MAX_LOSS_PCT)

    @classmethod
    def at(
        cls, rho: float, lambda_: float, *, workers: int, compute_ms: float, model_mb: float
    ) -> Job:
        """The job of so much compute and so many bytes that lies at a place of the map."""
        ideal_mbit = _ideal_s(model_mb, workers, 1.0)
        return cls(
            compute_ms=compute_ms,
            model_mb=model_mb,
            workers=workers,
            rate_mbit=ideal_mbit / (rho * compute_ms / 1000),
            delay_ms=lambda_ * compute_ms,
        )

    @property
    def compute_s(self) -> float:
        """Of a step, seconds."""
        return self.compute_ms / 1000

    @property
    def gradient_bytes(self) -> float:
        """Of all gradients together."""
        return _MB * self.model_mb

    @property
    def rho(self) -> float:
        """Seconds of an ideal all-reduce for each second of compute."""
        return _ideal_s(self.model_mb, self.workers, self.rate_mbit) / self.compute_s

    @property
    def lambda_(self) -> float:
        """Seconds of delay for each second of compute."""
        return self.delay_ms / self.compute_ms

    @property
    def net(self) -> NetworkCondition:
        """The links of all workers, all alike. Their queues never overflow, however long the delay
        is: what a short one costs hangs on the bytes of a segment and a burst, and scales with
        nothing.
        """
        return NetworkCondition(
            rate_mbit=self.rate_mbit,
            delay_ms=self.delay_ms,
            loss_pct=self.loss_pct,
            queue_ms=_ENDLESS_MS,
        )


def job_at(rho: float, lambda_: float, workers: int, loss_pct: float = 0.0) -> Job:
    """The map's own job at a place."""
    job = Job.at(rho, lambda_, workers=workers, compute_ms=COMPUTE_MS, model_mb=MODEL_MB)
    return replace(job, loss_pct=loss_pct)


def _ideal_s(model_mb: float, workers: int, rate_mbit: float) -> float:
    """What an all-reduce takes whose every byte is on the wire (Patarasuk and Yuan 2009)."""
    return 2 * (workers - 1) / workers * _MB * model_mb / (_MBIT * rate_mbit)


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:  # NaN fails every comparison
        raise UserError(f"{name}={value:g} is out of range: give {low:g} to {high:g}")


def read_job(words: Sequence[str], tasks: Sequence[str]) -> tuple[Job, str | None]:
    """The job of words such as "workers=32", and the task that one of them names.

    Raises:
        UserError: a key that does not exist, one that is missing or comes twice, or no number.
    """
    known = [field.name for field in fields(Job)]
    given: dict[str, str] = {}
    for word in words:
        key, is_pair, text = word.partition("=")
        if key not in (*known, "task") or not is_pair:
            raise UserError(f"there is no key {key!r}: {_nearest(key, [*known, 'task'])}")
        if key in given:
            raise UserError(f"{key} is given twice: leave one of them out")
        given[key] = text
    task = given.pop("task", None)
    if task not in (None, *tasks):
        raise UserError(f"there is no map of task={task}: choose {' or '.join(tasks)}")
    missing = [name for name in known if name not in given and name != "loss_pct"]
    if missing:
        raise UserError(f"{missing[0]} is missing: give {missing[0]}=NUMBER")
    workers = _number("workers", given.pop("workers"))
    if workers != int(workers):
        raise UserError(f"workers={workers:g} is no whole number: give one")
    numbers = {name: _number(name, text) for name, text in given.items()}
    return Job(workers=int(workers), **numbers), task


def _nearest(key: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(key, known, 1)
    return f"did you mean {near[0]}?" if near else f"choose {', '.join(known)}"


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"{name}={text} is no number: give one, such as {name}=10") from None
    if not 0 <= value < float("inf"):
        raise UserError(f"{name}={text} is out of range: give a finite number from 0 up")
    return value
