"""Movie snippets for MiniLM's last layer alone: each as the states of the layers below.

These layers keep the weights that they came with, so what they make of a text is computed once and
kept in the user's cache folder: 371 MB. Training a model's upper layers alone is a common way to
fine-tune, and cheap enough for hundreds of simulated workers.
"""

import importlib.metadata
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from experiments.tasks.base import Split
from experiments.tasks.cache import cached
from experiments.tasks.movie_snippets import SNIPPETS, MovieSnippets
from experiments.tasks.sentence_encoder import lower_states
from experiments.tasks.word_pieces import PACKAGE


@dataclass(frozen=True, kw_only=True)
class MovieStates(MovieSnippets):
    """The sentences of `MovieSnippets`, in the same parts.

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
