"""Speech Commands: spoken words of one second, a folder a word: `task=speech_commands`.

Warden, arXiv 1804.03209. The archive has ROOT/WORD/*.wav of 16 kHz, and validation_list.txt and
testing_list.txt name the files that are not for training. Who speaks is the part of a file's name
before the first underscore, and is its source.

Shapes: t frames, f mel bands.
"""

import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from experiments.tasks.own.dataset import DatasetTask
from experiments.tasks.own.files import speech_files
from host.errors import UserError

RATE = 16_000
WINDOW, HOP = 400, 160
"""Samples: 25 ms, every 10 ms."""
BANDS = 40
FRAMES = 1 + RATE // HOP


class Words(Dataset[Any]):
    """Pairs (log mel spectrogram float32 [3, f, t], word), the spectrogram thrice as the colours of
    a picture, which models of pictures take.
    """

    def __init__(self, files: list[Path], classes: list[str]) -> None:
        self.files, self.classes = files, classes
        self.targets = [classes.index(file.parent.name) for file in files]
        speakers = [file.name.split("_")[0] for file in files]
        numbers = {speaker: number for number, speaker in enumerate(sorted(set(speakers)))}
        self.sources = [numbers[speaker] for speaker in speakers]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Raises UserError for a file that is no recording of 16 kHz."""
        picture = log_mel(samples(self.files[index]))
        return picture.expand(3, -1, -1), self.targets[index]


@dataclass(frozen=True, kw_only=True, eq=False)
class SpeechCommands(DatasetTask):
    """A class a word; folders whose names begin with an underscore are no words.

    Args:
        root: the folder that the archive was unpacked into.
    """

    root: str
    train: Any = None
    validation: Any = None

    def __post_init__(self) -> None:
        files, parts = speech_files(self.root)
        names = {file: f"{file.parent.name}/{file.name}" for file in files}
        held_out = set.union(*parts.values())
        chosen = {name: [f for f in files if names[f] in part] for name, part in parts.items()}
        chosen["train"] = [f for f in files if names[f] not in held_out]
        classes = sorted({file.parent.name for file in files})
        for name, own in chosen.items():
            object.__setattr__(self, name, Words(own, classes))
        super().__post_init__()


def samples(file: Path) -> np.ndarray:
    """Of one second, float32 in [-1, 1): a shorter recording ends with silence. Raises UserError
    for another format.
    """
    try:
        with wave.open(str(file)) as recording:
            shape = recording.getnchannels(), recording.getsampwidth(), recording.getframerate()
            content = recording.readframes(RATE)
    except (OSError, EOFError, wave.Error) as error:
        raise UserError(f"{file} is no recording that can be read ({error}): delete it") from error
    if shape != (1, 2, RATE):
        raise UserError(f"{file} is not of one channel of 16 bits and 16 kHz: convert or delete it")
    x = np.frombuffer(content, "<i2").astype(np.float32) / 2**15
    return np.pad(x, (0, RATE - len(x)))


def log_mel(x: np.ndarray) -> Tensor:
    """The logarithm of the power in each mel band [f, t], scaled to a few units about zero."""
    window = torch.hann_window(WINDOW)
    spectrum = torch.stft(
        torch.from_numpy(x), WINDOW, HOP, window=window, pad_mode="constant", return_complex=True
    )
    power = torch.from_numpy(_FILTERS) @ spectrum.abs().square()
    return (power + 1e-6).log().add_(6).div_(4)


def _filters() -> np.ndarray:
    """Triangles over the frequencies, float32 [f, WINDOW / 2 + 1], by the mel scale
    2595 log10(1 + Hz / 700).
    """
    highest = 2595 * np.log10(1 + RATE / 2 / 700)
    edges_hz = 700 * (10 ** (np.linspace(0, highest, BANDS + 2) / 2595) - 1)
    hz = np.linspace(0, RATE / 2, WINDOW // 2 + 1)
    left, middle, right = (edges_hz[i : i + BANDS, None] for i in range(3))
    rising, falling = (hz - left) / (middle - left), (right - hz) / (right - middle)
    return np.minimum(rising, falling).clip(min=0).astype(np.float32)


_FILTERS = _filters()
