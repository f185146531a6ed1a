"""The names and types of a configuration."""

from dataclasses import dataclass, field, fields
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf

GROUPS = ("algo", "net", "task", "data", "model", "optim", "schedule", "backend", "cluster")
"""The groups of `conf/`; each becomes an object, by its `_target_`."""

EXPERIMENT = "experiment"
"""The group whose choices set keys of all others, and at the top."""


@dataclass
class TargetSchema:
    """The target by a metric other than accuracy: one of these has a value, or none."""

    top_5: float | None = None
    f1: float | None = None
    exact_match: float | None = None
    loss: float | None = None
    perplexity: float | None = None
    bits_per_byte: float | None = None
    word_error_rate: float | None = None


@dataclass
class NamesSchema:
    """What was chosen of each of these groups, for the records."""

    algo: str = MISSING
    net: str = MISSING
    task: str = MISSING
    model: str = MISSING
    optim: str = MISSING
    backend: str = MISSING


@dataclass
class Schema:
    """The names and types of `config.yaml`: a misspelt key or a wrong type fails at composition."""

    algo: Any = MISSING
    net: Any = MISSING
    task: Any = MISSING
    data: Any = MISSING
    model: Any = MISSING
    optim: Any = MISSING
    schedule: Any = MISSING
    backend: Any = MISSING
    cluster: Any = MISSING
    workers: int = MISSING
    seed: int = MISSING
    batch_size: int = MISSING
    max_steps: int = MISSING
    eval_every: int = MISSING
    log_every: int = MISSING
    target_accuracy: float | None = MISSING
    target: TargetSchema = field(default_factory=TargetSchema)
    stop_at_target: bool = MISSING
    bucket_bytes: int = MISSING
    streams: Any = MISSING
    pattern: str = MISSING
    pieces: bool | None = MISSING
    autotune: bool = MISSING
    precision: str = MISSING
    accumulate: int = MISSING
    clip_norm: float | None = MISSING
    lr_scale: float = MISSING
    checkpoint_every: int = MISSING
    resume: str | None = MISSING
    profile: str | None = MISSING
    trace: bool = MISSING
    tracker: str | None = MISSING
    device: str | None = MISSING
    names: NamesSchema = field(default_factory=NamesSchema)


KEYS = tuple(own.name for own in fields(Schema))
"""Of a configuration, at its top."""


def _part(share: float, whole: int) -> int:
    """So many steps, in YAML: ${part:0.2,${max_steps}}."""
    return max(1, round(share * whole))


ConfigStore.instance().store("schema", Schema)
OmegaConf.register_new_resolver("part", _part, replace=True)
