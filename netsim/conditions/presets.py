"""Conditions by name: the YAML files of conf/net, with overrides from a command line."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from host import conf
from netsim.conditions.condition import NetworkCondition

MEASURED = frozenset(
    ["cellular", "lan_1g", "lossy", "none", "one_slow_worker", "slow_tcp", "two_sites", "wan"],
)
"""The presets that results/validation/network.md has, each as its file is now: a test compares."""


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
    """
    import yaml
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    file = conf.files("net").get(name)
    if file is None:
        raise ValueError(f"There is no network {name!r}: choose from {', '.join(preset_names())}.")
    try:
        values: Any = OmegaConf.to_container(OmegaConf.load(file))
        for key, text in overrides.items():
            if key not in values:
                known = ", ".join(key for key in values if not key.startswith("_"))
                raise ValueError(f"net has no key {key!r}: choose from {known}.")
            values[key] = OmegaConf.to_container(OmegaConf.create(f"value: {text}"))["value"]  # pyright: ignore
    except (OmegaConfBaseException, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{name} and its overrides are no YAML: {said}") from error
    return NetworkCondition(**{key: v for key, v in values.items() if not key.startswith("_")})


def why_unmeasured(name: str) -> str | None:
    """A warning for a preset that no back end was measured with; None for the others."""
    if name in MEASURED:
        return None
    table = "results/validation/network.md"
    return f"net={name} is not in {table}: no back end was measured with it"


def preset_names() -> list[str]:
    """All names, sorted."""
    return list(conf.files("net"))
