"""Targets that were fixed before the runs of a folder: its targets.yaml."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import yaml

from host.errors import UserError

FILE = "targets.yaml"


def load_targets(folder: Path) -> dict[float, float]:
    """The scores, by how many points they are below the final score of a tuned baseline; none
    where the folder has no such file.

    Raises `UserError` for a file that holds none.
    """
    file = folder / FILE
    if not file.exists():
        return {}
    try:
        found = yaml.safe_load(file.read_text())
        return {float(points): float(target) for points, target in found.items()}
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{file} has no targets, such as 1.0: 0.85 ({error})") from error


def save_targets(targets: Mapping[float, float], folder: Path, remark: str) -> None:
    """Write them into the folder; `remark` stands above them."""
    text = yaml.safe_dump(dict(targets), sort_keys=False)
    (folder / FILE).write_text(f"# {remark}\n{text}")
