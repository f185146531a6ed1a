"""Tokens of texts, by a tokenizer of the library tokenizers: of one text or two as BERT takes them,
or of a whole file.

Shapes: t places, n tokens of a file.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.tasks.word_pieces import NO_TOKENIZERS, package_folder
from host.errors import UserError

FILE = "tokenizer.json"


class Tokens(NamedTuple):
    """What a model takes by name, `[t]` each, and where in the second text each token stands."""

    inputs: dict[str, Tensor]
    spans: list[tuple[int, int] | None]
    """From which character to which; None: not of the second text."""


class Tokenizer:
    """Pads and cuts texts to t tokens; of two texts the longer is cut.

    Args:
        name: a tokenizer.json, the folder of one, or the name of a model at Hugging Face; None:
            BERT's English word pieces without capitals, of the package that carries MiniLM.
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


class Vocabulary:
    """Tokens of whole texts, neither cut nor padded, without special ones.

    Args:
        name: as of a `Tokenizer`.

    Raises:
        UserError: there is no such tokenizer, or its library is not installed.
    """

    def __init__(self, name: str | None) -> None:
        self._tokenizer = _opened(str(_file(name)), None)

    @property
    def size(self) -> int:
        """How many tokens there are, special ones among them."""
        return self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> np.ndarray:
        """The tokens of a text, int32 [n]."""
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)


def _file(name: str | None) -> Path:
    path = package_folder() if name is None else Path(name)
    file = path / FILE if path.is_dir() else path
    return file if file.is_file() else _of_hub(str(name))


def _of_hub(name: str) -> Path:
    """From the cache of Hugging Face's library, or fetched by it."""
    try:
        from huggingface_hub import hf_hub_download  # pyright: ignore[reportMissingImports]

        return Path(hf_hub_download(name, FILE))
    except Exception as error:  # of the library, of its HTTP client, or that it is not there
        raise UserError(
            f"there is no tokenizer at task.tokenizer={name}, and no model of that name could be "
            f"fetched ({type(error).__name__}): give a {FILE}, or the folder of one, such as that "
            "of a model of transformers"
        ) from error


@functools.lru_cache(maxsize=4)
def _opened(file: str, length: int | None) -> Any:
    try:
        import tokenizers  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(NO_TOKENIZERS) from error
    try:
        tokenizer = tokenizers.Tokenizer.from_file(file)
    except Exception as error:  # the library raises that very class
        raise UserError(f"{file} is no tokenizer of the library tokenizers ({error})") from error
    if length is None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
    else:
        tokenizer.enable_truncation(length, strategy="longest_first")
        tokenizer.enable_padding(length=length)
    return tokenizer
