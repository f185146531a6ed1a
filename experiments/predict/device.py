"""A device that one does not own, by published figures: what a training step computes there.

Time is that of a published throughput, shared out over forward and backward by FLOPs; of another
batch size in proportion. What one of these devices takes is not known to a few per cent so, nor
how it slows down when kernels of communication run beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bagua_algos.engine.bucket import Bucket
from experiments.predict.shapes import ModelShape
from host.errors import UserError
from netsim.conditions.link import check_number
from netsim.timeline.compute import ComputeTimes

FOLDER = Path(__file__).parent / "devices"
WORD_BYTES = 4


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Of whole training steps on one device alone.

    Args:
        examples_per_s: as published.
        batch_size: of each step.
        optimizer_words: that the optimizer moves for each parameter, at the memory's rate.
        source: of the figures.

    Raises:
        ValueError: for figures that no device has.
    """

    examples_per_s: float
    batch_size: int
    optimizer_words: int
    source: str

    def __post_init__(self) -> None:
        for name in ("examples_per_s", "batch_size", "optimizer_words"):
            check_number(name, getattr(self, name))
            if not getattr(self, name):
                raise ValueError(f"{name}=0 trains nothing: take it from a publication.")
        if not self.source:
            raise ValueError("source is empty: name the publication that the figures are from.")


@dataclass(frozen=True, kw_only=True)
class Device:
    """One accelerator: peak rates, one direction, in 10^9 bytes per second; `steps` by model.

    Raises:
        ValueError: for a rate of 0, or none.
    """

    device: str
    memory_gb_per_s: float
    link_gb_per_s: float
    steps: dict[str, Throughput]

    def __post_init__(self) -> None:
        for name in ("memory_gb_per_s", "link_gb_per_s"):
            check_number(name, getattr(self, name))
            if not getattr(self, name):
                raise ValueError(f"{name}=0 moves nothing: choose more.")

    @classmethod
    def load(cls, name: str) -> "Device":
        """The one of that name in `experiments/devices`, or of a YAML file like those.

        Raises `UserError` where there is none.
        """
        own = FOLDER / f"{name}.yaml"
        path = own if own.is_file() else Path(name)
        try:
            values: dict[str, Any] = yaml.safe_load(path.read_text())
            steps = {model: Throughput(**step) for model, step in values.pop("steps").items()}
            return cls(**values, steps=steps)
        except (OSError, yaml.YAMLError, AttributeError, TypeError, KeyError, ValueError) as error:
            known = ", ".join(sorted(file.stem for file in FOLDER.glob("*.yaml")))
            raise UserError(
                f"profile={name} cannot be read ({error}): choose {known}, or a YAML file like "
                "experiments/predict/devices/v100.yaml"
            ) from error

    @property
    def memory_rate(self) -> float:
        """Bytes per second."""
        return 1e9 * self.memory_gb_per_s

    def compute_times(
        self, model: ModelShape, buckets: Sequence[Bucket], batch_size: int
    ) -> ComputeTimes:
        """Forward and backward of a batch, without the optimizer.

        Raises `UserError` for a model whose throughput is not known.
        """
        if model.name not in self.steps:
            known = ", ".join(sorted(self.steps))
            raise UserError(f"{self.device} has no throughput of {model.name}: choose {known}")
        known_step = self.steps[model.name]
        num_parameters = sum(bucket.numel for bucket in buckets)
        optimizer_bytes = WORD_BYTES * known_step.optimizer_words * num_parameters
        known_s = known_step.batch_size / known_step.examples_per_s
        example_s = (known_s - optimizer_bytes / self.memory_rate) / known_step.batch_size
        share = model.backward_flops / (model.forward_flops + model.backward_flops)
        backward_s = batch_size * example_s * share
        return ComputeTimes(
            forward_s=batch_size * example_s * (1 - share),
            backward_s=backward_s,
            bucket_ready_s=[backward_s * share for share in _ready_shares(model, buckets)],
        )


def _ready_shares(model: ModelShape, buckets: Sequence[Bucket]) -> list[float]:
    """The share of backward after which each bucket is complete and all before it are, too."""
    shares, ready, latest = model.ready_shares()[::-1], [], 0.0
    for bucket in buckets:
        own, shares = shares[: len(bucket.parameters)], shares[len(bucket.parameters) :]
        latest = max(latest, *own)
        ready.append(latest)
    return ready
