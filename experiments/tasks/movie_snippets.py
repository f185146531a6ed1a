"""VADER movie snippets: is a sentence of a film review kind or not?

Hutto and Gilbert: VADER, a parsimonious rule-based model for sentiment analysis of social media
text, ICWSM 2014: 10,605 sentences of film reviews (Pang and Lee, 2004), each rated by 20 people
from -4 to 4. Those whose mean rating is at least 0.5 away from 0 are kept; its sign is the label.
The file is in the source distribution of vaderSentiment 3.3.2.

Texts are tokens of MiniLM's own vocabulary, for which the package of its weights is needed. As
`MovieStates` they are what MiniLM's lower layers make of them, for training its last layer alone.
"""

import importlib.metadata
import io
import tarfile
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from experiments.tasks import fetch
from experiments.tasks.base import Classification, Split, TaskData, shuffled
from experiments.tasks.cache import cached
from experiments.tasks.loading.sentence_encoder import lower_states
from experiments.tasks.word_pieces import INSTALL, PACKAGE, PADDING_TOKEN, package_folder
from host.errors import UserError

REQUIREMENT = "vaderSentiment==3.3.2"
MEMBERS = ("hutto_ICWSM_2014.tar.gz", "movieReviewSnippets_GroundTruth.txt")
SHA256 = "c8293b0d942e90e223ea2c0955d969040d1a1be514a978b9af0698940bd13350"
MAX_TOKENS = 48
"""Longer texts are cut."""
SNIPPETS = f"{SHA256[:16]}-{MAX_TOKENS}"
"""By what the texts and their tokens are known in the cache."""
SIZES = (8_000, 1_000, 1_072)
"""Of the training, validation and test parts."""


@dataclass(frozen=True, kw_only=True)
class MovieSnippets(Classification):
    """Sentences: 8,000 to train, 1,000 to validate and 1,072 to test; 1 is positive, 0 negative.

    An example is its tokens [MAX_TOKENS], padded with 0.

    Args:
        source: the source distribution of vaderSentiment 3.3.2, where it has been downloaded by
            hand.
    """

    num_classes: ClassVar[int] = 2

    target_accuracy: float = 0.85
    source: str | None = None

    def load(self) -> TaskData:
        """Reads the splits; raises UserError if the texts or the vocabulary cannot be had."""
        return TaskData(*shuffled(self.snippets(), sizes=SIZES, seed=0))

    def snippets(self) -> Split:
        """All of them; raises UserError if the texts or the vocabulary cannot be had."""
        return cached(f"movie_snippets-{SNIPPETS}", lambda: encode(*parse(self.content())))

    def inputs(self, x: Tensor) -> Tensor:
        """Tokens int16 [..., MAX_TOKENS] as int64."""
        return x.long()

    def lengths(self, split: Split) -> np.ndarray:
        """Tokens of each text, int64 [m]."""
        return (split.x != PADDING_TOKEN).sum(1)

    def content(self) -> bytes:
        """The file of snippets; raises UserError if it cannot be had or is another."""
        content = fetch.archive(self.source, fetch.source_distribution(REQUIREMENT))
        for name in MEMBERS:
            content = _member(content, name)
        return fetch.verified(content, SHA256, MEMBERS[-1])


@dataclass(frozen=True, kw_only=True)
class MovieStates(MovieSnippets):
    """The sentences of `MovieSnippets`, in the same parts, each as the states after all layers of
    MiniLM but the last. These keep the weights that they came with, so what they make of a text is
    computed once and kept in the user's cache folder (371 MB).

    An example is the states of its tokens, float16 [MAX_TOKENS, 384], zeros where padding is.
    """

    def snippets(self) -> Split:
        """All of them; raises UserError if texts, vocabulary or weights cannot be had."""
        tokens = super().snippets()
        version = importlib.metadata.version(PACKAGE)
        return cached(
            f"movie_states-{SNIPPETS}-{version}",
            lambda: Split(lower_states(tokens.x), tokens.y),
        )

    def inputs(self, x: Tensor) -> Tensor:
        """States float16 [..., MAX_TOKENS, 384] as float32."""
        return x.float()

    def lengths(self, split: Split) -> np.ndarray:
        """Tokens of each text, int64 [m]."""
        return split.x.any(2).sum(1)


def parse(content: bytes) -> tuple[list[str], np.ndarray]:
    """Texts, and labels int64 [m], of lines of a number, the mean rating and the text."""
    lines = content.decode("utf-8").splitlines()
    rows = [line.split("\t", 2) for line in lines]
    clear = [(text, float(rating) > 0) for _, rating, text in rows if abs(float(rating)) >= 0.5]
    return [text for text, _ in clear], np.array([positive for _, positive in clear], np.int64)


def encode(texts: list[str], labels: np.ndarray) -> Split:
    """Texts as rows of tokens.

    Raises UserError where the vocabulary, or the package that applies it, is not installed.
    """
    folder = package_folder()
    try:
        from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(f"the task movie_snippets needs tokenizers: {INSTALL}") from error
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    tokens = np.full((len(texts), MAX_TOKENS), PADDING_TOKEN, np.int16)
    for row, text in zip(tokens, texts, strict=True):
        ids = tokenizer.encode(text).ids  # one by one: a batch would start threads, before a fork
        row[: len(ids)] = ids
    return Split(tokens, labels)


def _member(archive: bytes, name: str) -> bytes:
    """The file `name`, in whatever folder, of a tar.gz. Raises UserError where there is none."""
    try:
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            for member in files:
                file = files.extractfile(member) if member.name.endswith(f"/{name}") else None
                if file is not None:
                    return file.read()
    except tarfile.TarError:
        pass
    raise UserError(f"task.source holds no {name}: give the source of {REQUIREMENT}, or null")
