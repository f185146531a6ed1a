"""Where Hydra looks for the files of a configuration."""

from typing import Any

from hydra._internal.hydra import Hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from host import conf

_OURS = {"hydra", "main", "schema"}
"""Who provides files that are known not to set `hydra.mode`: Hydra, and this project."""


class OwnFiles(SearchPathPlugin):
    """Adds the folder conf/ where a command was started."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Hydra asks each time that it composes anything."""
        own = conf.own_folder()
        if own is not None:
            search_path.append("own", f"file://{own}")


def find_own_files() -> None:
    """From now on Hydra finds them, too."""
    Plugins.instance().register(OwnFiles)


def compose_once() -> None:
    """From now on Hydra composes a configuration once, not another time before that, only to read
    `hydra.mode`: where no other files than ours are found, the words alone can set it.
    """
    read_mode = Hydra.get_mode

    def get_mode(self: Hydra, config_name: str | None, overrides: list[str]) -> Any:
        places = {place.provider for place in self.config_loader.get_search_path().get_path()}
        of_mode = ("hydra.mode", "hydra.searchpath")
        if places <= _OURS and not any(key in word for word in overrides for key in of_mode):
            return None
        return read_mode(self, config_name, overrides)

    Hydra.get_mode = get_mode
