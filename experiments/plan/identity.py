"""What a configuration is as text, and the few digits that stand for it."""

import hashlib
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf


def plain(config: DictConfig) -> dict[str, Any]:
    """`config` resolved, as plain values."""
    values = OmegaConf.to_container(config, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def config_text(config: Mapping[str, Any]) -> str:
    """What config.yaml holds for a resolved configuration."""
    return OmegaConf.to_yaml(OmegaConf.create(dict(config)))


def identity(text: object) -> str:
    """Ten digits that stand for a text, such as a run's config.yaml."""
    return hashlib.sha256(str(text).encode()).hexdigest()[:10]
