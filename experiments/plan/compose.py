"""The app's configuration, for programs that make many plans."""

from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from experiments.plan.messages import is_of_hydra, sentence
from experiments.plan.overrides import normalize_overrides
from experiments.plan.search_path import find_own_files
from host import conf
from host.errors import UserError


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """The configuration of the app under `overrides`, as on its command line.

    Raises `UserError` for an override that does not fit.
    """
    return of_app(compose_with_hydra(overrides))


def compose_with_hydra(overrides: Sequence[str]) -> DictConfig:
    """The same with Hydra's own node, and with the types of the schema. Raises as above."""
    find_own_files()
    with initialize_config_dir(str(conf.PACKAGED), version_base="1.3"):
        try:
            return compose("config", normalize_overrides(overrides), return_hydra_config=True)
        except Exception as error:
            if not is_of_hydra(error):
                raise
            raise UserError(sentence(error)) from error


def of_app(config: DictConfig) -> DictConfig:
    """All of it but Hydra's own node, which is what is resolved in it from now on."""
    HydraConfig.instance().set_config(config)
    return OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
