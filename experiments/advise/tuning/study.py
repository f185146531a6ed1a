"""The file of a search, study.db: Optuna's own, in SQLite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import optuna  # pyright: ignore[reportMissingImports]
from sqlalchemy.exc import SQLAlchemyError  # pyright: ignore[reportMissingImports]

from experiments.advise.tuning.objectives import Objective
from host.errors import UserError, first_line

DATABASE = "study.db"

_NAME = "search"


@contextmanager
def opening(folder: Path) -> Iterator[None]:
    """Raises `UserError` where the study in a folder is damaged, none, or another version's."""
    try:
        yield
    except (SQLAlchemyError, optuna.exceptions.OptunaError, RuntimeError) as error:
        raise UserError(
            f"{folder / DATABASE} cannot be opened as a search: {first_line(error)}: choose "
            "another folder=..."
        ) from error


def open_study(folder: Path, objectives: Sequence[Objective], num_first: int) -> optuna.Study:
    """The study in a folder, made where there is none; none of its first trials is pruned."""
    options = {"connect_args": {"timeout": 100}}
    url = f"sqlite:///{(folder / DATABASE).absolute()}"
    return optuna.create_study(
        study_name=_NAME,
        storage=optuna.storages.RDBStorage(url, engine_kwargs=options),
        load_if_exists=True,
        directions=["maximize" if o.is_maximized else "minimize" for o in objectives],
        pruner=optuna.pruners.MedianPruner(n_startup_trials=num_first),
    )
