"""Which algorithms relax the same thing, as their classes say: `Algorithm.family`.

The object of each YAML in conf/algo is made once, which imports torch: ask where something is drawn
only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from host import conf

SETTLED = (
    *("torch_ddp", "torch_ddp_bf16", "torch_ddp_powersgd", "allreduce", "allreduce_fp8"),
    *("bytegrad", "qsgd", "ef_signsgd", "power_sgd", "top_k", "qadam", "one_bit_adam"),
    *("local_sgd", "post_local_sgd", "slowmo", "diloco", "diloco_int8", "decentralized"),
    *("low_precision_decentralized", "choco_sgd", "sgp", "async"),
)
"""The order of members within a family that figures were published with. Other names follow by the
alphabet, so that a new algorithm changes the style of none of these.
"""


@cache
def families() -> dict[str, tuple[str, ...]]:
    """The algorithms of conf/algo by family, in the order of their places in it.

    One that cannot be made of its YAML alone is left out.
    """
    members: dict[str, list[str]] = defaultdict(list)
    files = sorted(conf.files("algo").values(), key=_order)
    for file in files:
        family = _family(file)
        if family is not None:
            members[family].append(file.stem)
    return {family: tuple(names) for family, names in members.items()}


def _order(file: Path) -> tuple[int, str]:
    is_settled = file.stem in SETTLED
    return SETTLED.index(file.stem) if is_settled else len(SETTLED), file.stem


def _family(file: Path) -> str | None:
    """That of the algorithm with the options of the file; None where it cannot be made."""
    from hydra.errors import HydraException
    from hydra.utils import instantiate

    try:
        config = yaml.safe_load(file.read_text())
        own = config.get("algo", config) | _parts(config.get("defaults", []))
        algorithm = instantiate(_plain(own), _convert_="all")
        return str(algorithm.family)
    except (HydraException, OSError, ValueError, TypeError, AttributeError, yaml.YAMLError):
        return None


def _parts(defaults: Sequence[Any]) -> dict[str, Any]:
    """What the file takes from the groups below conf/algo, such as `compressor: qsgd`. Composing
    each algorithm by Hydra would take a tenth of a second.
    """
    named = [entry for entry in defaults if isinstance(entry, Mapping)]
    choices = {key.partition("@")[0]: name for entry in named for key, name in entry.items()}
    files = {key: conf.files(f"algo/{key}").get(name) for key, name in choices.items()}
    return {key: yaml.safe_load(file.read_text()) for key, file in files.items() if file}


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Without the options that a run's configuration would complete: these get their defaults."""
    return {
        key: _plain(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key != "defaults" and not (isinstance(value, str) and "${" in value)
    }
