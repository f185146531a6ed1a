"""Which files a task of one's own data needs.

Found without torch, which takes seconds to import: a wrong folder is told before that.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from host.errors import UserError

PICTURES = (".jpg", ".jpeg", ".png", ".bmp", ".webp")
"""How their names end."""

TABLES = (".parquet", ".arrow", ".jsonl", ".json")

GLUE_TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")

OF_SQUAD = (
    "put those of the data set squad there, from https://huggingface.co/datasets/rajpurkar/squad"
)

_GLUE_VALIDATION = {"mnli": "validation_matched"}
"""Where it is not called validation."""


def cifar_folder(root: str, num_classes: int) -> Path:
    """That of the binary files of CIFAR, at `root` or below it. Raises `UserError`."""
    name = "data_batch_1.bin" if num_classes == 10 else "train.bin"
    found = sorted(Path(root).glob(f"**/{name}"))
    if not found:
        raise UserError(
            f"there is no {name} below task.root={root}: unpack cifar-{num_classes}-binary.tar.gz "
            "there, from https://www.cs.toronto.edu/~kriz/cifar.html"
        )
    return found[0].parent


def text_files(path: str) -> list[Path]:
    """That file, or all below that folder, in the order of their names. Raises `UserError`."""
    place = Path(path)
    files = sorted(p for p in place.rglob("*") if p.is_file()) if place.is_dir() else [place]
    if not files or not place.exists():
        raise UserError(f"there is no text at task.path={path}: give a file, or a folder of files")
    return files


def speech_files(root: str) -> tuple[list[Path], dict[str, set[str]]]:
    """The recordings of Speech Commands, and of which of them each part that is not for training
    consists, as WORD/NAME. Raises `UserError`.
    """
    place = Path(root)
    files = sorted(f for f in place.glob("*/*.wav") if not f.parent.name.startswith("_"))
    parts = {
        "validation": _listed(place / "validation_list.txt"),
        "test": _listed(place / "testing_list.txt"),
    }
    if not files or not all(parts.values()):
        raise UserError(
            f"task.root={root} has no WORD/*.wav beside validation_list.txt and testing_list.txt: "
            "unpack speech_commands_v0.02.tar.gz there, from "
            "http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz"
        )
    return files, parts


def squad_files(root: str) -> dict[str, list[Path]]:
    """Those of "train" and "validation". Raises `UserError`."""
    return {part: _tables(Path(root), part, OF_SQUAD) for part in ("train", "validation")}


def glue_files(root: str, name: str) -> dict[str, list[Path]]:
    """Those of "train" and "validation" of one of `GLUE_TASKS`; those of others may lie beside it.
    Raises `UserError`.
    """
    place = Path(root)
    place = place / name if (place / name).is_dir() else place
    needs = f"put those of {name} there, from https://huggingface.co/datasets/nyu-mll/glue"
    names = {"train": "train", "validation": _GLUE_VALIDATION.get(name, "valid")}
    return {part: _tables(place, own, needs) for part, own in names.items()}


def picture_files(root: str) -> tuple[list[Path], list[Path], list[Path]]:
    """Those for training, validation and test; a tenth each is drawn for these where folders do not
    say which they are. Raises `UserError`.
    """
    place = Path(root)
    if (place / "train").is_dir():
        names = ("val", "validation", "test")
        held_out = next((place / name for name in names if (place / name).is_dir()), None)
        if held_out is None:
            raise UserError(f"{root} has train and no val: put pictures to evaluate on there")
        validation = _pictures(held_out, root)
        is_apart = held_out.name != "test" and (place / "test").is_dir()
        test = _pictures(place / "test", root) if is_apart else validation
        return _pictures(place / "train", root), validation, test
    files = _pictures(place, root)
    order = np.random.default_rng(0).permutation(len(files))
    tenth = max(1, len(files) // 10)
    drawn = [files[number] for number in order]
    return drawn[2 * tenth :], drawn[:tenth], drawn[tenth : 2 * tenth]


def check_any_picture(root: str) -> None:
    """Raise as `picture_files` where there is none: to list the millions of ImageNet takes long."""
    place = Path(root)
    folder = place / "train" if (place / "train").is_dir() else place
    if next(_pictures_in(folder), None) is None:
        picture_files(root)


def check_any_recording(root: str) -> None:
    """Raise as `speech_files` where there is none at all."""
    if next(Path(root).glob("*/*.wav"), None) is None:
        speech_files(root)


def check_any_text(path: str) -> None:
    """Raise as `text_files` where there is none at all."""
    place = Path(path)
    if not place.is_file() and next((p for p in place.rglob("*") if p.is_file()), None) is None:
        text_files(path)


def _tables(folder: Path, part: str, needs: str) -> list[Path]:
    """Of the first kind of which there are any whose names have `part` in them."""
    for suffix in TABLES:
        files = sorted(file for file in folder.rglob(f"*{suffix}") if part in file.name)
        if files:
            return files
    raise UserError(f"task.root={folder} has no file *{part}*.parquet, .arrow or .json: {needs}")


def _pictures(folder: Path, root: str) -> list[Path]:
    found = sorted(_pictures_in(folder))
    if len(found) < 3:
        raise UserError(
            f"task.root={root}: {folder} has {len(found)} pictures in folders of classes: "
            "put them there as CLASS/NAME.jpg (of ImageNet, as train/CLASS and val/CLASS)"
        )
    return found


def _pictures_in(folder: Path) -> Iterator[Path]:
    return (file for file in folder.glob("*/*") if file.suffix.lower() in PICTURES)


def _listed(file: Path) -> set[str]:
    try:
        return set(file.read_text().split())
    except OSError:
        return set()
