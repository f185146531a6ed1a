"""How committed files are made: `results/reproduce.yaml`, and the studies that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from experiments.runs.actions import Action, Command, Pack, SideBySide
from experiments.runs.parts import choose_parts
from host.errors import UserError

FILE = Path("results/reproduce.yaml")
_KEYS = {"studies", "commands", "without_records"}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the files in `results/` and the figures in `docs/` are made.

    Args:
        archives: of records: `Pack` says what they hold, and where it was.
        commands: that make files, each by itself.
        others: what is done after them, in order, such as copies.
        without_records: why a file cannot be made again, by its path.
    """

    archives: tuple[Pack, ...]
    commands: tuple[Command, ...]
    others: tuple[Action, ...]
    without_records: Mapping[str, str]


def load_recipe(root: Path) -> Recipe:
    """That of the checkout at `root`. Raises `UserError` where its file is none."""
    file = root / FILE
    try:
        plain: Any = OmegaConf.to_container(OmegaConf.load(file))
        if plain.keys() != _KEYS:
            raise ValueError(f"its keys are {', '.join(plain)}, not {', '.join(sorted(_KEYS))}")
        return _recipe(**plain)
    except (
        OSError,
        YAMLError,
        OmegaConfBaseException,
        ValueError,
        TypeError,
        AttributeError,
    ) as error:
        raise UserError(f"{file} does not say how files are made: {error}") from error


def _recipe(
    studies: Mapping[str, list[str]],
    commands: list[str],
    without_records: Mapping[str, str],
) -> Recipe:
    actions = [
        action
        for study, names in studies.items()
        for part in choose_parts(study, names)
        for action in part.actions
    ]
    own = [Command(arguments=tuple(text.split())) for text in commands]
    of_studies = [command for action in actions for command in _commands(action)]
    return Recipe(
        archives=tuple(action for action in actions if isinstance(action, Pack)),
        commands=(*own, *of_studies),
        others=tuple(a for a in actions if not isinstance(a, Pack | Command | SideBySide)),
        without_records=without_records,
    )


def _commands(action: Action) -> tuple[Command, ...]:
    if isinstance(action, Command):
        return (action,)
    return action.commands if isinstance(action, SideBySide) else ()
