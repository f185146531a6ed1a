"""What a configuration is as text, and the few digits that stand for it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from experiments.tasks.target import ACCURACY, LOWER_IS_BETTER

if TYPE_CHECKING:  # records are read without it
    from omegaconf import DictConfig


TARGET = "target"
"""A group that older records lack whole."""

ADDED: dict[str, Any] = {
    "streams": 1,
    "pattern": "ring",
    "pieces": None,
    "autotune": False,
    "tracker": None,
    "net.tcp_slow_start_after_idle": None,
    "net.tcp_wmem_max_kb": None,
    "net.tcp_rmem_max_kb": None,
    "net.mtu": 1500,
    "cluster.net_plugin": None,
    "cluster.stacking": "auto",
    "data.partition": "iid",
    "data.alpha": None,
    "data.sizes": "equal",
    "data.loaders": 0,
    "data.for_tuning": False,
    **{f"target.{metric}": None for metric in LOWER_IS_BETTER if metric != ACCURACY},
}
"""Options that older records lack, with the value that stands for what those runs had. Where an
option has this value, config.yaml leaves it out, so that a run is known as the same as before.
"""


def plain(config: DictConfig) -> dict[str, Any]:
    """`config` resolved, as plain values."""
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def config_text(config: Mapping[str, Any]) -> str:
    """What config.yaml holds for a resolved configuration."""
    from omegaconf import OmegaConf

    return OmegaConf.to_yaml(OmegaConf.create(_told(config)))


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config`, read from a record, with what it leaves out."""
    values = dict(config)
    for path, usual in ADDED.items():
        group, _, key = path.rpartition(".")
        if not group:
            values.setdefault(key, usual)
        elif group == TARGET or isinstance(values.get(group), Mapping):
            values[group] = {key: usual, **values.get(group, {})}
    return values


def _told(config: Mapping[str, Any], group: str = "") -> dict[str, Any]:
    return {
        key: _told(value, f"{group}{key}.") if isinstance(value, Mapping) else value
        for key, value in config.items()
        if not _is_as_ever(f"{group}{key}", value)
    }


def _is_as_ever(path: str, value: object) -> bool:
    if path == TARGET and isinstance(value, Mapping):
        return not _told(value, f"{path}.")
    return path in ADDED and type(value) is type(ADDED[path]) and value == ADDED[path]


def identity(text: object) -> str:
    """Ten digits that stand for a text, such as a run's config.yaml."""
    return hashlib.sha256(str(text).encode()).hexdigest()[:10]
