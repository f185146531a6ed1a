"""Where configurations are: the YAML files of this project, and those of its users.

A checkout has them in `conf/`, an installed wheel in `relaxlab_conf/`, beside the packages. A
folder `conf/` where a command is started adds files of one's own: `conf/algo/mine.yaml` is
`algo=mine`. No file there takes the place of one of ours.
"""

from pathlib import Path

from host.errors import UserError

_HOME = Path(__file__).resolve().parents[1]
PACKAGED = _HOME / "conf" if (_HOME / "conf" / "config.yaml").is_file() else _HOME / "relaxlab_conf"
"""The folder of this project's files."""


def checkout(program: str, needs: str = "tests and examples") -> Path:
    """The folder of a checkout. Raises `UserError` where `program` runs from an installed wheel."""
    if PACKAGED != _HOME / "conf":
        raise UserError(f"{program} needs {needs}, which come with the source alone")
    return _HOME


def own_folder() -> Path | None:
    """`conf/` where the command was started, None where there is none or it is ours.

    Raises `UserError` where a file in it has the name of one of ours: which of them is meant?
    """
    own = Path.cwd() / "conf"
    if not own.is_dir() or own.samefile(PACKAGED):
        return None
    for file in own.glob("*/**/*.yaml"):
        if (PACKAGED / file.relative_to(own)).exists():
            raise UserError(f"{file} has the name of one of relaxlab's own files: rename it")
    return own


def folders() -> list[Path]:
    """Ours, then one's own."""
    own = own_folder()
    return [PACKAGED] if own is None else [PACKAGED, own]


def files(group: str) -> dict[str, Path]:
    """The YAML files of a group, such as "algo" or "algo/topology", by name, sorted; without those
    whose name stands for no text on a command line, as 1 and null do.
    """
    found = [file for folder in folders() for file in (folder / group).glob("*.yaml")]
    chosen = [file for file in found if file.is_file() and _is_text(file.stem)]
    return {file.stem: file for file in sorted(chosen, key=lambda file: file.stem)}


def _is_text(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return name.lower() not in ("null", "true", "false")
    return False


def is_group(name: str) -> bool:
    """Whether a folder of files has that name."""
    return any((folder / name).is_dir() for folder in folders())
