"""Where Hydra looks for the files of a configuration."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin

from host import conf


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
