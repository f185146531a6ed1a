"""Conditions by name: the YAML files of conf/net, with overrides from a command line."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from host import conf
from netsim.conditions.condition import NetworkCondition

MEASURED = frozenset(
    ["cellular", "lan_1g", "lossy", "none", "one_slow_worker", "slow_tcp", "two_sites", "wan"],
)
"""The presets that results/validation/network.md has, each as its file is now: a test compares."""

_KEYS = [field.name for field in fields(NetworkCondition)]


def read_condition(
    name: str, overrides: Mapping[str, str] = MappingProxyType({})
) -> NetworkCondition:
    """The condition that conf/net/`name`.yaml describes.

    Args:
        name: of the file.
        overrides: a key's value as YAML, such as "20" of "delay_ms", or "{0: {rate_mbit: 10}}" of
            "workers".

    Raises:
        ValueError: if there is no such file, a key is unknown, or a value is none of a network's.
        UserError: if the file is no YAML.
    """
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    file = conf.files("net").get(name)
    if file is None:
        raise ValueError(f"There is no network {name!r}: choose from {', '.join(preset_names())}.")
    with conf.reading(file):
        loaded = OmegaConf.load(file)
    try:
        values: Any = OmegaConf.to_container(loaded)
        _check_keys(values, file)
        for key, text in overrides.items():
            if key not in _KEYS:
                raise ValueError(f"net has no key {key!r}: choose from {', '.join(_KEYS)}.")
            values[key] = OmegaConf.to_container(OmegaConf.create(f"value: {text}"))["value"]  # pyright: ignore
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{name} and its overrides are no YAML: {said}") from error
    return NetworkCondition(**{key: v for key, v in values.items() if not key.startswith("_")})


def _check_keys(values: Any, file: Path) -> None:
    """Raise `ValueError` where a file's values are no network's."""
    if not isinstance(values, dict):
        raise ValueError(f"{file} is no network: write lines such as rate_mbit: 100")
    for key in map(str, values):
        if key not in _KEYS and not key.startswith("_"):
            raise ValueError(f"{file} has the unknown key {key!r}: choose from {', '.join(_KEYS)}.")


def why_unmeasured(name: str) -> str | None:
    """A warning for a preset that no back end was measured with; None for the others."""
    if name in MEASURED:
        return None
    table = "results/validation/network.md"
    return f"net={name} is not in {table}: no back end was measured with it"


def preset_names() -> list[str]:
    """All names, sorted."""
    return list(conf.files("net"))
