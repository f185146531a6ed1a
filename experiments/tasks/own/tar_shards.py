"""Shards of WebDataset: tar files of samples, read without being unpacked.

    00017.jpg 00017.cls 00018.jpg 00018.cls ...       in shard-000000.tar, shard-000001.tar, ...

Files of one name and several endings are a sample. The library webdataset reads such shards in
their order; here their headers are read once, and a sample is read at its place, so that epochs are
shuffled as those of every Dataset.
"""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from host.errors import UserError

Sample = dict[str, tuple[Path, int, int]]
"""Of each ending the file, the first byte in it, and the number of bytes."""


class TarShards(Dataset[Any]):
    """Pairs (picture float32 [3, s, s], class), scaled as in image folders; or with `make` what
    that makes of a sample's files.

    Args:
        pattern: of the shards, such as "shards/train-*.tar".
        size: s, of the middle of a picture.
        make: takes bytes by ending, such as {"jpg": ..., "cls": ...}.

    Raises:
        UserError: there are no shards, or a damaged one.
    """

    def __init__(
        self, pattern: str, size: int = 224, make: Callable[[dict[str, bytes]], Any] | None = None
    ) -> None:
        path = Path(pattern)
        files = sorted(path.parent.glob(path.name))
        if not files:
            raise UserError(f"there are no shards {pattern}: put tar files of WebDataset there")
        self._samples = [sample for file in files for sample in _samples(file)]
        self._size, self._make = size, make

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        """Raises UserError where a sample has no picture or no class."""
        parts = {}
        for ending, (file, start, size) in self._samples[index].items():
            with file.open("rb") as shard:
                shard.seek(start)
                parts[ending] = shard.read(size)
        return self._pair(parts, index) if self._make is None else self._make(parts)

    def _pair(self, parts: dict[str, bytes], index: int) -> tuple[Tensor, int]:
        from PIL import Image

        from experiments.tasks.own.files import PICTURES
        from experiments.tasks.own.image_folder import ImageFolder, normalized, square

        picture = next((parts[e] for e in parts if f".{e}" in PICTURES), None)
        try:
            if picture is None or "cls" not in parts:
                raise ValueError(f"it has {', '.join(parts)}")
            with Image.open(io.BytesIO(picture)) as file:
                pixels = np.asarray(square(file.convert("RGB"), self._size))
            x = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
            return normalized(x, ImageFolder.mean, ImageFolder.std), int(parts["cls"])
        except (OSError, ValueError) as error:
            raise UserError(
                f"sample {index} has no picture and class that can be read ({error}): give it a "
                ".jpg or .png and a .cls, or a `make` of your own"
            ) from error


def _samples(file: Path) -> list[Sample]:
    found: dict[str, Sample] = {}
    try:
        with tarfile.open(file, "r:") as shard:
            for member in shard:
                if member.isfile():
                    folder, _, name = member.name.rpartition("/")
                    stem, _, ending = name.partition(".")
                    place = (file, member.offset_data, member.size)
                    found.setdefault(f"{folder}/{stem}", {})[ending.lower()] = place
    except (OSError, tarfile.TarError) as error:
        raise UserError(
            f"{file} is no tar file that can be read ({error}): copy it anew"
        ) from error
    return list(found.values())
