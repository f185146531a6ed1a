"""Hydra's launcher for Ray: each run is one task.

hydra-ray-launcher 1.2.2, Hydra's own, asks for cloudpickle below 3, and joblib 1.6, which
scikit-learn brings along, for 3 or newer: they cannot be installed together.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hydra.core.singleton import Singleton
from hydra.core.utils import (
    JobReturn,
    configure_log,
    filter_overrides,
    run_job,
    setup_globals,
)
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from host.errors import UserError


class RayLauncher(Launcher):
    """Runs on a Ray cluster whose hosts see one file system.

    Args:
        init: arguments of `ray.init`.
        remote: arguments of `ray.remote`.
    """

    def __init__(self, init: DictConfig, remote: DictConfig) -> None:
        self._init = init
        self._remote = remote

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Keep what a launch needs."""
        self._context = hydra_context
        self._task_function = task_function
        self._config = config

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the jobs on the Ray cluster and return their results.

        Raises `UserError` where Ray is not installed or refuses its arguments.
        """
        try:
            import ray  # pyright: ignore[reportMissingImports]
        except ModuleNotFoundError as error:
            raise UserError(
                "hydra/launcher=ray is not installed: pip install 'relaxlab[ray]'"
            ) from error

        setup_globals()
        configure_log(self._config.hydra.hydra_logging, self._config.hydra.verbose)
        Path(self._config.hydra.sweep.dir).mkdir(parents=True, exist_ok=True)
        for number, overrides in enumerate(job_overrides, start=initial_job_idx):
            print(f"#{number}: {' '.join(filter_overrides(overrides))}", flush=True)
        with _refusing("remote"):
            task = ray.remote(**_plain(self._remote))(_run)
        with _refusing("init"):
            ray.init(**_plain(self._init))
        try:
            shared = (self._context, self._task_function, self._config, Singleton.get_state())
            return ray.get(
                [
                    task.remote(number, list(overrides), *shared)
                    for number, overrides in enumerate(job_overrides, start=initial_job_idx)
                ]
            )
        finally:
            ray.shutdown()


@contextmanager
def _refusing(key: str) -> Iterator[None]:
    """What Ray says of its arguments, or of a cluster that is not there, in a sentence."""
    try:
        yield
    except (ValueError, TypeError, RuntimeError, ConnectionError) as error:
        said = " ".join(str(error).split())
        raise UserError(f"Ray refuses hydra.launcher.{key}: {said}") from error


def _run(
    number: int,
    overrides: list[str],
    context: HydraContext,
    task_function: TaskFunction,
    config: DictConfig,
    state: dict[Any, Any],
) -> JobReturn:
    """One run, in a process of Ray's."""
    setup_globals()
    Singleton.set_state(state)
    config = context.config_loader.load_sweep_config(config, overrides)
    with open_dict(config):
        config.hydra.job.num, config.hydra.job.id = number, str(number)
    return run_job(
        hydra_context=context,
        config=config,
        task_function=task_function,
        job_dir_key="hydra.sweep.dir",
        job_subdir_key="hydra.sweep.subdir",
    )


def _plain(values: DictConfig) -> dict[str, Any]:
    plain = OmegaConf.to_container(values, resolve=True)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}
