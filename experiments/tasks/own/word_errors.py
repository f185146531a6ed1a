"""Word error rate: how many words must be exchanged, left out or put in to make the true text of a
model's, of each word of the true texts. Levenshtein's distance, as in speech recognition.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from experiments.tasks.base import PADDING, Indices, Ratio

Decode = Callable[[list[int]], str]


def word_errors(said: str, truth: str) -> tuple[int, int]:
    """The number of errors, and of words of the truth."""
    words, true_words = said.split(), truth.split()
    distances = list(range(len(words) + 1))
    for number, true_word in enumerate(true_words, start=1):
        before, distances[0] = distances[0], number
        for place, word in enumerate(words, start=1):
            exchanged = before + (word != true_word)
            before = distances[place]
            distances[place] = min(exchanged, before + 1, distances[place - 1] + 1)
    return distances[-1], len(true_words)


def ratio_of(decode: Decode) -> Ratio:
    """Of labels and largest outputs at each place of a text `[w, b, t]`, made texts by `decode`."""

    def sums(outputs_wbtc: Tensor, y_wbt: Tensor, places_wb: Indices) -> Tensor:
        told = torch.zeros(len(y_wbt), 2, dtype=torch.float64)
        said_wbt = outputs_wbtc.argmax(-1)
        for worker, rows in enumerate(zip(said_wbt, y_wbt, strict=True)):
            for said_t, y_t in zip(*rows, strict=True):
                is_label = y_t != PADDING
                texts = (decode(ids[is_label].tolist()) for ids in (said_t, y_t))
                told[worker] += torch.tensor(word_errors(*texts))
        return told

    return sums
