"""What a configuration is as text, and the few digits that stand for it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # records are read without it
    from omegaconf import DictConfig


ADDED: dict[str, Any] = {"streams": 1, "pattern": "ring"}
"""Options that older records lack, with the value that those runs had. Where an option has this
value, config.yaml leaves it out, so that a run is known as the same as ever.
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

    told = {key: value for key, value in config.items() if not _is_as_ever(key, value)}
    cluster = told.get("cluster")
    if isinstance(cluster, Mapping) and cluster.get("net_plugin", "") is None:  # older ones lack it
        told["cluster"] = {key: value for key, value in cluster.items() if key != "net_plugin"}
    return OmegaConf.to_yaml(OmegaConf.create(told))


def _is_as_ever(key: str, value: object) -> bool:
    return key in ADDED and type(value) is type(ADDED[key]) and value == ADDED[key]


def identity(text: object) -> str:
    """Ten digits that stand for a text, such as a run's config.yaml."""
    return hashlib.sha256(str(text).encode()).hexdigest()[:10]
