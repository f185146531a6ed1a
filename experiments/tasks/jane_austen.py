"""The next character in Jane Austen's six novels.

The texts of Project Gutenberg (public domain), as lines in the Debian package r-cran-janeaustenr:
R's lazy-load file janeaustenr/data/Rdata.rdb, which is read here without R.

Shapes: t characters of context, m examples.
"""

import io
import itertools
import struct
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from experiments.tasks import fetch
from experiments.tasks.base import Classification, Split, TaskData
from experiments.tasks.cache import cached
from host.errors import UserError

PACKAGE = "r-cran-janeaustenr"
MEMBER = "janeaustenr/data/Rdata.rdb"
SHA256 = "1f48a6d7751aa60776b8aacf34d3b6898c46f4ee0fd103d733dd04f45e761841"
"""Of the novels as one text, in UTF-8."""
CHARACTER_VECTOR = 16
"""R's number for that type of object."""
CONTEXT = 128
NUM_VALIDATION = 800
"""Examples: 102,400 characters."""

_INT = struct.Struct(">i")


@dataclass(frozen=True, kw_only=True)
class JaneAusten(Classification):
    """Characters: the last tenth of the text is for test, 800 examples before it for validation.

    An example is t characters, numbered in the order of their code points; its labels are the t
    characters that each follow one of them. Examples do not overlap, so the first characters of one
    are predicted from few.

    Args:
        source: the .deb file of r-cran-janeaustenr, where it has been downloaded by hand.
        num_examples: how many of the first ones there are; None: all of the six novels.
        num_validation: how many of them are for validation.
    """

    num_classes: ClassVar[int] = 81
    labels_are_characters: ClassVar[bool] = True

    target_accuracy: float = 0.55
    source: str | None = None
    num_examples: int | None = None
    num_validation: int = NUM_VALIDATION

    def __post_init__(self) -> None:
        super().__post_init__()
        least = 2 * self.num_validation
        is_few = self.num_examples is not None and self.num_examples <= least
        if self.num_validation < 1 or is_few:
            raise UserError(
                "task.num_validation must be at least 1, and task.num_examples null or more than "
                f"twice as many, but got {self.num_validation} and {self.num_examples}"
            )

    def load(self) -> TaskData:
        """Reads the splits; raises UserError if the package cannot be had or is another, or where
        validation takes half of the examples or more.
        """
        text = cached(f"jane_austen-{SHA256[:16]}-{CONTEXT}", lambda: parse(self._content()))
        labelled = Split(text.x[: self.num_examples], text.y[: self.num_examples].astype(np.int64))
        if len(labelled) <= 2 * self.num_validation:
            raise UserError(
                f"task.num_validation={self.num_validation} is half or more of the {len(labelled)} "
                "examples that there are: take fewer"
            )
        test = len(labelled) * 9 // 10
        bounds = (0, test - self.num_validation, test, len(labelled))
        parts = (slice(start, end) for start, end in itertools.pairwise(bounds))
        return TaskData(*(Split(labelled.x[part], labelled.y[part]) for part in parts))

    def inputs(self, x: Tensor) -> Tensor:
        """Characters uint8 [..., t] as int64."""
        return x.long()

    def _content(self) -> bytes:
        package = fetch.archive(self.source, fetch.debian_package(PACKAGE))
        lines = itertools.chain.from_iterable(character_vectors(_lazy_load_file(package)))
        return fetch.verified("\n".join(lines).encode(), SHA256, f"the text in {PACKAGE}")


def parse(content: bytes) -> Split:
    """Cuts a text into examples: characters uint8 [m, t], and those that follow uint8 [m, t]."""
    code_points = np.array([ord(character) for character in content.decode()], np.uint32)
    numbers = np.unique(code_points, return_inverse=True)[1].astype(np.uint8)
    end = (len(numbers) - 1) // CONTEXT * CONTEXT
    return Split(numbers[:end].reshape(-1, CONTEXT), numbers[1 : end + 1].reshape(-1, CONTEXT))


def character_vectors(lazy_load_file: bytes) -> Iterator[list[str]]:
    """The strings of each character vector in R's lazy-load file, in its order.

    An object is its size in 4 bytes, then a zlib stream of R's serialization ("R Internals", 1.8).
    """
    rest = lazy_load_file
    while rest:
        stream = zlib.decompressobj()
        strings = _strings(stream.decompress(rest[4:]))
        rest = stream.unused_data
        if strings is not None:
            yield strings


def _strings(serialized: bytes) -> list[str] | None:
    """Those of a character vector; None for another object."""
    (version,) = _INT.unpack_from(serialized, 2)
    at = 14
    if version == 3:  # names its encoding
        at += 4 + _INT.unpack_from(serialized, at)[0]
    if _INT.unpack_from(serialized, at)[0] & 0xFF != CHARACTER_VECTOR:
        return None
    (count,) = _INT.unpack_from(serialized, at + 4)
    at += 8
    strings = []
    for _ in range(count):
        (size,) = _INT.unpack_from(serialized, at + 4)
        at += 8
        strings.append(serialized[at : at + size].decode())
        at += size
    return strings


def _lazy_load_file(package: bytes) -> bytes:
    with tempfile.NamedTemporaryFile(suffix=".deb") as file:
        file.write(package)
        file.flush()
        command = ["dpkg-deb", "--fsys-tarfile", file.name]
        try:
            files = subprocess.run(command, check=True, capture_output=True).stdout
            with tarfile.open(fileobj=io.BytesIO(files)) as tar:
                (name,) = (name for name in tar.getnames() if name.endswith(MEMBER))
                found = tar.extractfile(name)
                assert found is not None
                return found.read()
        except (OSError, subprocess.CalledProcessError, tarfile.TarError, ValueError) as error:
            raise UserError(
                f"no {MEMBER} comes out of the package {PACKAGE} ({error}): give its .deb file as "
                "task.source on a system that has dpkg-deb, or null"
            ) from error
