"""A device that one does not own, by published figures: what a training step computes there.

Every operation takes its FLOPs at a share of the peak rate, or its bytes at a share of the
memory's, whichever is longer (Williams et al. 2009, "Roofline"). The shares are by kind of
operation, and are fitted to published throughputs of whole models: `fit_shares`. They hold what the
trace does not know: kernels that are fused, Winograd's convolutions, the sizes of matrices. What a
device takes is not known to a few per cent so, nor how it slows down when kernels of communication
run beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from numpy.typing import NDArray

from experiments.plan.limits.of_runs import PRECISIONS
from experiments.predict.step_trace import KINDS, StepTrace, Work
from host.errors import UserError
from host.strangers.regular import read_text
from netsim.conditions.link import check_number
from netsim.timeline.compute import ComputeTimes

if TYPE_CHECKING:  # a mistake in the name of a device needs no torch to be told
    from bagua_algos.engine.bucket import Bucket

FOLDER = Path(__file__).parent / "devices"
SHARES = Path(__file__).parent / "shares.yaml"
"""Written by `python -m experiments.devices --write`."""

WORD_BYTES = 4
INSIDE = ("nvlink", "pcie")
"""What links the workers of a node."""

_BYTES_OF_FLOAT32 = {"float32": 1.0, "bfloat16": 0.5, "float16": 0.5}
"""What a tensor of forward and backward takes, beside float32."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A published throughput of one device alone.

    Args:
        model: a file of `experiments/predict/models`.
        precision: of forward and backward.
        batch_size: examples of each step, or of each micro-batch.
        examples_per_s: as published.
        optimizer_words: that the optimizer moves for each parameter and micro-batch, at the
            memory's rate.
        words: more of the command line, as "tokens" and "model.config.n_layer".
        fused_attention: whether the implementation kept attention's scores out of memory.
        forward_only: whether it is of inference.
        source: the publication.

    Raises:
        ValueError: for figures that no device has.
    """

    model: str
    precision: str
    batch_size: int
    examples_per_s: float
    source: str
    optimizer_words: float = 0
    words: Mapping[str, Any] = field(default_factory=dict)
    fused_attention: bool = False
    forward_only: bool = False

    def __post_init__(self) -> None:
        for name in ("examples_per_s", "batch_size"):
            check_number(name, getattr(self, name))
            if not getattr(self, name):
                raise ValueError(f"{name}=0 trains nothing: take it from a publication.")
        check_number("optimizer_words", self.optimizer_words)
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision={self.precision} is none of {', '.join(PRECISIONS)}.")
        if not self.source:
            raise ValueError("source is empty: name the publication that the figures are from.")


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What a device achieves of its peaks in one precision: `by_kind` of `KINDS`, that of
    elementwise operations of the memory's rate. `basis` says in words what they rest on.
    """

    by_kind: Mapping[str, float]
    basis: str

    def __post_init__(self) -> None:
        if set(self.by_kind) != set(KINDS):
            raise ValueError(f"shares are of {', '.join(KINDS)}, not of {', '.join(self.by_kind)}.")
        for kind, share in self.by_kind.items():
            check_number(kind, share)
            if not share:
                raise ValueError(f"a share of 0 never ends: choose more for {kind}.")


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator: `memory_gb_per_s`, and what a worker's link inside a node moves in one
    direction, in 10^9 bytes per second, None where it has none; peaks in 10^12 FLOPs per second, by
    precision, dense; `tensor_cores` names the precisions whose peak is of matrix units.

    Raises:
        ValueError: for a rate of 0, or no peak.
    """

    device: str
    source: str
    memory_gb_per_s: float
    nvlink_gb_per_s: float | None
    pcie_gb_per_s: float
    peak_tflops: dict[str, float]
    tensor_cores: Sequence[str]
    figures: tuple[Figure, ...] = ()
    shares: Mapping[str, Shares]

    def __post_init__(self) -> None:
        rates = {
            "memory_gb_per_s": self.memory_gb_per_s,
            "pcie_gb_per_s": self.pcie_gb_per_s,
            **{f"peak_tflops.{key}": rate for key, rate in self.peak_tflops.items()},
        }
        if self.nvlink_gb_per_s is not None:
            rates["nvlink_gb_per_s"] = self.nvlink_gb_per_s
        for name, rate in rates.items():
            check_number(name, rate)
            if not rate:
                raise ValueError(f"{name}=0 moves nothing: choose more.")

    @classmethod
    def load(cls, name: str) -> Device:
        """The one of that name in `devices`, or of a YAML file like those that
        has `shares` in it.

        Raises `UserError` where there is none.
        """
        own = FOLDER / f"{name}.yaml"
        path = own if own.is_file() else Path(name)
        try:
            read = _packaged if path is own else _read
            values = dict(read(path))
            figures = tuple(Figure(**figure) for figure in values.pop("figures", ()))
            shares = values.pop("shares", None)
            if shares is None:
                shares = _packaged(SHARES).get(path.stem)
            if shares is None:
                raise ValueError("it has no shares")
            by_precision = {key: Shares(**entry) for key, entry in shares.items()}
            return cls(**values, figures=figures, shares=by_precision)
        except (OSError, yaml.YAMLError, AttributeError, TypeError, KeyError, ValueError) as error:
            raise UserError(
                f"device={name} cannot be read ({error}): choose {', '.join(known_devices())}, or "
                "a YAML file like experiments/predict/devices/v100.yaml"
            ) from error

    @property
    def memory_rate(self) -> float:
        """Bytes per second."""
        return 1e9 * self.memory_gb_per_s

    def link_gb_per_s(self, inside: str | None = None) -> float:
        """Of a worker's link inside a node; by default NVLink, where the device has it.

        Raises `UserError` for a link that it does not have.
        """
        if inside is None:
            inside = "pcie" if self.nvlink_gb_per_s is None else "nvlink"
        if inside not in INSIDE:
            raise UserError(f"inside={inside} is no link: choose {', '.join(INSIDE)}")
        rate = self.pcie_gb_per_s if inside == "pcie" else self.nvlink_gb_per_s
        if rate is None:
            raise UserError(f"inside=nvlink: {self.device} has none, take inside=pcie")
        return rate

    def shares_of(self, precision: str) -> Shares:
        """Raises `UserError` for a precision that it does not compute in."""
        if precision not in self.peak_tflops or precision not in self.shares:
            raise UserError(
                f"precision={precision} is not known of {self.device}: choose "
                f"{', '.join(key for key in self.shares if key in self.peak_tflops)}"
            )
        return self.shares[precision]

    def seconds(
        self, work: Work, precision: str, by_kind: Mapping[str, float] | None = None
    ) -> NDArray[np.float64]:
        """What each operation takes; with other shares than its own, if they are given."""
        if by_kind is None:
            by_kind = self.shares_of(precision).by_kind
        kinds, flops, num_bytes = work.arrays
        achieved = np.array([by_kind[kind] for kind in KINDS])[kinds]
        computing_s = flops / (1e12 * self.peak_tflops[precision] * achieved)
        moved = num_bytes * _BYTES_OF_FLOAT32[precision]
        return np.maximum(computing_s, moved / (self.memory_rate * by_kind["elementwise"]))

    def compute_times(
        self, trace: StepTrace, buckets: Sequence[Bucket], precision: str
    ) -> ComputeTimes:
        """Forward and backward of the traced step, without the optimizer.

        Raises `UserError` for a precision that it does not compute in.
        """
        done_s = np.concatenate([[0.0], np.cumsum(self.seconds(trace.backward, precision))])
        return ComputeTimes(
            forward_s=float(self.seconds(trace.forward, precision).sum()),
            backward_s=float(done_s[-1]),
            bucket_ready_s=_ready_s(trace, buckets, done_s),
        )


def _read(path: Path) -> dict[str, Any]:
    """Raises `OSError` for no regular file, and `ValueError` for what is no mapping."""
    found = yaml.safe_load(read_text(path))
    if not isinstance(found, dict):
        raise ValueError("it is no mapping")
    return found


_packaged = cache(_read)
"""Of a file that comes with relaxlab."""


def known_devices() -> list[str]:
    """The names that `device` may have."""
    return sorted(file.stem for file in FOLDER.glob("*.yaml"))


def _ready_s(
    trace: StepTrace, buckets: Sequence[Bucket], done_s: NDArray[np.float64]
) -> list[float]:
    """The time after which each bucket is complete and all before it are, too. A parameter that
    gets no gradient is known to get none when backward ends.
    """
    last = len(done_s) - 1
    arrivals = [last if place is None else place for place in reversed(trace.arrivals)]
    ready, latest = [], 0.0
    for bucket in buckets:
        own, arrivals = arrivals[: len(bucket.parameters)], arrivals[len(bucket.parameters) :]
        latest = max(latest, *(float(done_s[place]) for place in own))
        ready.append(latest)
    return ready
