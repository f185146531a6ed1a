"""The next byte or token of any text: `task=text task.path=corpus.txt`, or a folder of files.

Shapes: t places of context, m examples.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from torch import Tensor

from experiments.tasks.base import Classification, Split, TaskData
from experiments.tasks.own.files import text_files
from experiments.tasks.own.tokens import Vocabulary
from experiments.tasks.target import BITS_PER_BYTE, LOSS
from host.errors import UserError

MIN_EXAMPLES = 30


@dataclass(frozen=True, kw_only=True)
class Text(Classification):
    """Bytes or tokens of a file, or of all files below a folder in the order of their names.

    An example is t of them; its labels are the t that each follow one of them. Of every file of
    three examples or more, the last tenth is for test and the tenth before it for validation. A
    file is a source.

    Args:
        path: of the file or folder.
        context: t.
        tokenizer: a tokenizer.json, the folder of one, or the name of a model at Hugging Face; the
            files are UTF-8 then. None: bytes.
        metric: by which runs are compared; None: bits a byte of bytes, the loss of tokens.

    Raises:
        ValueError: a context of less than one place.
        UserError: there is no such tokenizer.
    """

    path: str
    context: int = 128
    tokenizer: str | None = None
    target_accuracy: float | None = None
    metric: str | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    num_classes: int = field(init=False)
    labels_are_characters: bool = field(init=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.context < 1:
            raise ValueError(f"task.context must be at least 1, got {self.context}")
        are_bytes = self.tokenizer is None
        own = {
            "num_classes": 256 if are_bytes else Vocabulary(self.tokenizer).size,
            "labels_are_characters": are_bytes,
            "metric": self.metric or (BITS_PER_BYTE if are_bytes else LOSS),
        }
        for name, value in own.items():
            object.__setattr__(self, name, value)

    def load(self) -> TaskData:
        """Reads the files; raises UserError where there is too little in them, or they cannot be
        read.
        """
        try:
            cut = [self._cut(self._numbers(file)) for file in text_files(self.path)]
        except OSError as error:
            raise UserError(f"{error.filename} cannot be read ({error.strerror})") from error
        whole = [x for x in cut if len(x)]
        if sum(map(len, whole)) < MIN_EXAMPLES:
            unit = "bytes" if self.tokenizer is None else "tokens"
            raise UserError(
                f"task.path={self.path} has {sum(map(len, whole))} examples of {self.context} "
                f"{unit}, and {MIN_EXAMPLES} are few enough: give more text, or a smaller "
                "task.context"
            )
        parts: tuple[list[Split], ...] = ([], [], [])
        for source, x in enumerate(whole):
            tenth = max(1, len(x) // 10) if len(x) > 2 else 0
            ends = (0, len(x) - 2 * tenth, len(x) - tenth, len(x))
            for part, start, end in zip(parts, ends, ends[1:], strict=False):
                own = x[start:end]
                sources = np.full(len(own), source)
                part.append(Split(own[:, :-1].copy(), own[:, 1:].astype(np.int64), sources))
        if not any(map(len, parts[1])):
            raise UserError(
                f"task.path={self.path} has no file of 3 examples of {self.context} places, of "
                "which one could be held out: join the files, or take a smaller task.context"
            )
        return TaskData(*map(_joined, parts))

    def inputs(self, x: Tensor) -> Tensor:
        """Bytes uint8 or tokens int32 [..., t] as int64."""
        return x.long()

    def _numbers(self, file: Path) -> np.ndarray:
        """The bytes of a file, uint8, or its tokens, int32."""
        content = file.read_bytes()
        if self.tokenizer is None:
            return np.frombuffer(content, np.uint8)
        try:
            return Vocabulary(self.tokenizer).encode(content.decode())
        except UnicodeDecodeError as error:
            raise UserError(
                f"{file} is no UTF-8 text ({error.reason} at byte {error.start}): convert it, or "
                "leave out task.tokenizer, for its bytes"
            ) from error

    def _cut(self, text: np.ndarray) -> np.ndarray:
        """Examples [m, t + 1], of which neighbours share a place."""
        if len(text) <= self.context:
            return np.empty((0, self.context + 1), text.dtype)
        windows = np.lib.stride_tricks.sliding_window_view(text, self.context + 1)
        return windows[:: self.context]


def _joined(parts: list[Split]) -> Split:
    x, y, sources = ([getattr(part, name) for part in parts] for name in ("x", "y", "sources"))
    return Split(np.concatenate(x), np.concatenate(y), np.concatenate(sources))
