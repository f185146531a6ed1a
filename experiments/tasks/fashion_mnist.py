"""Fashion-MNIST: 70,000 grey images of clothes in ten classes.

Xiao, Rasul and Vollgraf: Fashion-MNIST, a novel image dataset for benchmarking machine learning
algorithms, arXiv 1708.07747. The four idx files are those of `root` where it is given, else of the
Debian package dataset-fashion-mnist, else of the user's cache folder; missing ones are downloaded.
"""

import functools
import gzip
import hashlib
import http.client
import struct
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from experiments.tasks import cache
from experiments.tasks.base import Split, TaskData, stratified
from experiments.tasks.images import ImageClassification
from host.errors import UserError

MD5 = {
    "train-images-idx3-ubyte.gz": "cf8536b0aa1a6ac5fa3f23001093305c",
    "train-labels-idx1-ubyte.gz": "10bea18fdb374794d4bb42e356e600c9",
    "t10k-images-idx3-ubyte.gz": "f78720b4224f21cce2f2ccf2d7a94c9a",
    "t10k-labels-idx1-ubyte.gz": "0d30e22e447f3c33dab9ed536400ac01",
}
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
# The official address offers no https; the checksums above stand in for it.
URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
SILENCE_S = 5
"""How long the server may send nothing."""
DOWNLOAD_S = 300
"""How long all four files may take."""


@dataclass(frozen=True, kw_only=True)
class FashionMNIST(ImageClassification):
    """Clothes: 55,000 training and 5,000 validation images with equal classes, 10,000 of test.

    Args:
        root: the folder that holds the four .gz files, or receives them; None looks where the
            Debian package puts them, then in the user's cache folder.
    """

    mean: ClassVar[float] = 0.2860
    std: ClassVar[float] = 0.3530

    target_accuracy: float = 0.90
    root: str | None = None

    def load(self) -> TaskData:
        """Reads the splits; raises UserError if the files cannot be had or are corrupt."""
        root = self._find()
        states = [(root / name).stat() for name in MD5]
        return _load(root, tuple((state.st_mtime_ns, state.st_size) for state in states))

    def _find(self) -> Path:
        if self.root is None and all((DEBIAN / name).is_file() for name in MD5):
            return DEBIAN
        folder = cache.folder() / "fashion-mnist" if self.root is None else Path(self.root)
        download_missing(folder)
        return folder


def download_missing(folder: Path) -> None:
    """Fetches into `folder` the files it lacks, within about DOWNLOAD_S seconds.

    Raises UserError if that fails; a file is stored only whole.
    """
    deadline_s = time.monotonic() + DOWNLOAD_S
    try:
        for name in MD5:
            if not (folder / name).is_file():
                content = _fetch(f"{URL}/{name}", deadline_s)
                with cache.atomic_write(folder / name) as file:
                    file.write(content)
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"Fashion-MNIST is not complete in {folder} and its download failed ({error}): put "
            f"{', '.join(MD5)} into that folder, or install the Debian package "
            "dataset-fashion-mnist and leave root null."
        ) from error


def parse_idx(content: bytes) -> np.ndarray:
    """Reads the idx format: 0, 0, type 8 (uint8), rank; big-endian sizes; the elements.

    Raises ValueError if the type differs or the sizes do not match the elements.
    """
    magic, rank = struct.unpack_from(">3sB", content)
    if magic != b"\0\0\x08":
        raise ValueError(f"idx data of uint8 begins with 000008, but got {magic.hex()}.")
    sizes = struct.unpack_from(f">{rank}I", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(sizes).copy()


def _fetch(url: str, deadline_s: float) -> bytes:
    content = bytearray()
    with urllib.request.urlopen(url, timeout=SILENCE_S) as response:
        while chunk := response.read1(1 << 16):
            content += chunk
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"it took over {DOWNLOAD_S} s")
    if not _is_genuine(content, Path(url).name):
        raise OSError(f"{url} has another md5 than expected")
    return bytes(content)


@functools.lru_cache(maxsize=1)
def _load(root: Path, _of_files: tuple[tuple[int, int], ...]) -> TaskData:
    """The splits, unpacked once for all runs of a process, as long as the files stay as they are:
    it takes longer than the replay of a run.
    """
    training = _read(root, "train")
    train, validation = stratified(training, per_class=(5_500, 500), seed=0)
    return TaskData(train, validation, _read(root, "t10k"))


def _read(root: Path, part: str) -> Split:
    x = parse_idx(_verified(root / f"{part}-images-idx3-ubyte.gz"))
    y = parse_idx(_verified(root / f"{part}-labels-idx1-ubyte.gz"))
    return Split(x, y.astype(np.int64))


def _verified(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): mend that.") from error
    if not _is_genuine(content, path.name):
        raise UserError(
            f"{path} is corrupt (its md5 is not {MD5[path.name]}): delete it, or reinstall the "
            "Debian package dataset-fashion-mnist, and run again."
        )
    return gzip.decompress(content)


def _is_genuine(content: bytes | bytearray, name: str) -> bool:
    return hashlib.md5(content, usedforsecurity=False).hexdigest() == MD5[name]
