"""Where configurations are: the YAML files of this project, and those of its users.

A checkout has them in `conf/`, an installed wheel in `relaxlab_conf/`, beside the packages. A
folder `conf/` where a command is started adds files of one's own: `conf/algo/mine.yaml` is
`algo=mine`. No file there takes the place of one of ours.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from host.errors import UserError, first_line

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


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Within, a YAML file is read, and nothing else is done. Raises `UserError`, which names the
    file and its line, where it is none or cannot be read.
    """
    import yaml  # late: some commands read none

    try:
        yield
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    # Those of Python are of tags and depths, as of `!!int x`.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        line = _line_of(error, file)
        where = f"{file}, line {line}," if line else file
        said = getattr(error, "problem", None) or first_line(error)
        raise UserError(f"{where} is no YAML: {said}") from error


def _line_of(error: Exception, file: Path) -> int | None:
    """From 1 on; None where `error` does not tell."""
    if mark := getattr(error, "problem_mark", None):
        return mark.line + 1
    if isinstance(error, UnicodeDecodeError):  # which may be of a piece of the file
        readable = file.read_bytes().decode("utf-8", "surrogateescape")
        position = next((i for i, sign in enumerate(readable) if "\udc80" <= sign <= "\udcff"), 0)
        return readable.count("\n", 0, position) + 1
    if (position := getattr(error, "position", None)) is not None:  # a sign that no YAML has
        return file.read_text(encoding="utf-8").count("\n", 0, position) + 1
    return None
