"""Tokens of one text or two, by a tokenizer of the library tokenizers, as BERT takes them.

Shapes: t places.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.tasks.word_pieces import package_folder
from host.errors import UserError


class Tokens(NamedTuple):
    """What a model takes by name, `[t]` each, and where in the second text each token stands."""

    inputs: dict[str, Tensor]
    spans: list[tuple[int, int] | None]
    """From which character to which; None: not of the second text."""


class Tokenizer:
    """Pads and cuts texts to t tokens; of two texts the longer is cut.

    Args:
        name: a tokenizer.json, or the folder of one; None: BERT's English word pieces without
            capitals, of the package that carries MiniLM.
        length: t.

    Raises:
        UserError: there is no such tokenizer, or its library is not installed.
    """

    def __init__(self, name: str | None, length: int) -> None:
        self._file = str(_file(name))
        self.length = length
        self.load()

    def load(self) -> Any:
        """The library's tokenizer: threads of its own would not survive a fork, and a copy of this
        object in another process opens the file again.
        """
        return _opened(self._file, self.length)

    def __call__(self, first: str, second: str | None = None) -> Tokens:
        """The tokens of both texts."""
        encoding = self.load().encode(first, second)
        inputs = {
            "input_ids": encoding.ids,
            "token_type_ids": encoding.type_ids,
            "attention_mask": encoding.attention_mask,
        }
        spans = [
            span if sequence == 1 else None
            for span, sequence in zip(encoding.offsets, encoding.sequence_ids, strict=True)
        ]
        return Tokens({name: torch.tensor(ids) for name, ids in inputs.items()}, spans)


def _file(name: str | None) -> Path:
    path = package_folder() if name is None else Path(name)
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise UserError(
            f"there is no tokenizer at task.tokenizer={name}: give a tokenizer.json, or the folder "
            "of one, such as that of a model of transformers"
        )
    return file


@functools.lru_cache(maxsize=4)
def _opened(file: str, length: int) -> Any:
    try:
        import tokenizers  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(
            "texts need the library tokenizers: run pip install 'relaxlab[text]'"
        ) from error
    try:
        tokenizer = tokenizers.Tokenizer.from_file(file)
    except Exception as error:  # the library raises that very class
        raise UserError(f"{file} is no tokenizer of the library tokenizers ({error})") from error
    tokenizer.enable_truncation(length, strategy="longest_first")
    tokenizer.enable_padding(length=length)
    return tokenizer
