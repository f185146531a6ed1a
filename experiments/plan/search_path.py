"""Where Hydra looks for the files of a configuration."""

import pickle
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra._internal.hydra import Hydra
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.plugins.search_path_plugin import SearchPathPlugin

from host import conf

_OURS = {"hydra", "main", "schema"}
"""Who provides files that are known not to set `hydra.mode`: Hydra, and this project."""
_read: dict[tuple[Any, ...], bytes] = {}
"""What a file contained, pickled: Hydra takes the list of defaults out of what it gets."""
_load_config = FileConfigSource.load_config


class OwnFiles(SearchPathPlugin):
    """Adds the folder conf/ where a command was started."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        """Hydra asks each time that it composes anything."""
        own = conf.own_folder()
        if own is not None:
            search_path.append("own", f"file://{own}")


def find_own_files() -> None:
    """From now on Hydra finds them, too, and reads no file again that has not changed: that is a
    quarter of what a composition takes.
    """
    Plugins.instance().register(OwnFiles)
    # The search for plugins makes Hydra's classes a second time: the registry has those in use.
    in_use: Any = SourcesRegistry.instance().resolve("file")
    in_use.load_config = _load_once


def _load_once(self: FileConfigSource, config_path: str) -> ConfigResult:
    path = Path(self.path, self._normalize_file_name(config_path))
    try:
        file = path.stat()
    except OSError:
        return _load_config(self, config_path)  # which says what is wrong
    key = (self.provider, self.path, config_path, file.st_ino, file.st_mtime_ns, file.st_size)
    if key not in _read:
        with conf.reading(path):
            _read[key] = pickle.dumps(_load_config(self, config_path))
    return pickle.loads(_read[key])


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
