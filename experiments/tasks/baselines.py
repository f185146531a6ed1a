"""What models without a gradient step reach on the tasks' test sets, and on jane_austen's
validation set, where its target stands:

    python -m experiments.tasks.baselines

Logistic regression on TF-IDF (movie_snippets) and on each feature's mean and deviation over time
(spoken_digits); 5-grams, smoothed after Witten and Bell (jane_austen; Moffat's method C).

Shapes: n characters, c different ones.
"""

import math
from typing import NamedTuple

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from experiments.tasks import movie_snippets
from experiments.tasks.base import Split, TaskData, shuffled
from experiments.tasks.jane_austen import JaneAusten
from experiments.tasks.movie_snippets import MovieSnippets
from experiments.tasks.spoken_digits import SpokenDigits
from host import commands


class NGrams:
    """The probability of a character after each context of up to `order` - 1 others:

        P_k(x | context) = (count(context x) + T(context) P_k-1(x | shorter context))
                           / (count(context) + T(context))

    where T counts the different characters seen after it, and P_0 is uniform.
    """

    def __init__(self, text_n: np.ndarray, *, order: int, num_classes: int) -> None:
        self._num_classes = num_classes
        self._tables = [_Table.of(_codes(text_n, k, num_classes)) for k in range(1, order + 1)]

    def probabilities(self, contexts_nk: np.ndarray) -> np.ndarray:
        """Of every character, [n, c], behind contexts of `order` - 1 characters."""
        next_nc = np.arange(self._num_classes)
        p_nc = np.full((len(contexts_nk), self._num_classes), 1 / self._num_classes)
        for length, table in enumerate(self._tables):
            code_n = np.zeros(len(contexts_nk), np.int64)
            for character_n in contexts_nk[:, contexts_nk.shape[1] - length :].T:
                code_n = code_n * self._num_classes + character_n
            count_nc = table.counts_of(code_n[:, None] * self._num_classes + next_nc)
            count_n1, distinct_n1 = count_nc.sum(1, keepdims=True), (count_nc > 0).sum(1)[:, None]
            smoothed_nc = (count_nc + distinct_n1 * p_nc) / np.maximum(count_n1 + distinct_n1, 1)
            p_nc = np.where(count_n1 > 0, smoothed_nc, p_nc)
        return p_nc


class _Table(NamedTuple):
    """How often each code occurs; codes ascend."""

    codes: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, codes: np.ndarray) -> "_Table":
        return cls(*np.unique(codes, return_counts=True))

    def counts_of(self, codes: np.ndarray) -> np.ndarray:
        at = np.searchsorted(self.codes, codes).clip(max=len(self.codes) - 1)
        return np.where(self.codes[at] == codes, self.counts[at], 0)


def score(grams: NGrams, text_n: np.ndarray, order: int) -> tuple[float, float]:
    """Bits a character and the share of characters that were the likeliest."""
    windows = np.lib.stride_tricks.sliding_window_view(text_n, order)
    bits, correct = 0.0, 0
    for part in np.array_split(windows, math.ceil(len(windows) / 10_000)):
        p_nc = grams.probabilities(part[:, :-1])
        bits -= np.log2(p_nc[np.arange(len(part)), part[:, -1]]).sum()
        correct += int((p_nc.argmax(1) == part[:, -1]).sum())
    return bits / len(windows), correct / len(windows)


def jane_austen(order: int = 5) -> dict[str, tuple[float, float]]:
    """The `score` on the validation and on the test part."""
    data = JaneAusten().load()
    grams = NGrams(_text(data.train), order=order, num_classes=JaneAusten.num_classes)
    parts = {"validation": data.validation, "test": data.test}
    return {name: score(grams, _text(part), order) for name, part in parts.items()}


def snippets() -> float:
    """The accuracy on words and pairs of them."""
    texts, labels = movie_snippets.parse(MovieSnippets().content())
    every = Split(np.array(texts, object), labels)
    train, _, test = shuffled(every, sizes=movie_snippets.SIZES, seed=0)
    model = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), LogisticRegression(C=10)
    )
    return float(model.fit(train.x, train.y).score(test.x, test.y))


def digits() -> float:
    """The accuracy on recordings whose length and order are lost."""
    data: TaskData = SpokenDigits().load()
    model = LogisticRegression(max_iter=1000)
    model.fit(_moments(data.train.x), data.train.y)
    return float(model.score(_moments(data.test.x), data.test.y))


def _text(split: Split) -> np.ndarray:
    """The characters of all examples, int64 [n]."""
    return split.x.ravel().astype(np.int64)


def _moments(x: np.ndarray) -> np.ndarray:
    features, is_frame = x[..., :-1], x[..., -1:]
    lengths = is_frame.sum(1)
    mean = features.sum(1) / lengths
    deviation = np.sqrt(((features - mean[:, None]) ** 2 * is_frame).sum(1) / lengths)
    return np.concatenate([mean, deviation], 1)


def _codes(text_n: np.ndarray, length: int, num_classes: int) -> np.ndarray:
    """Each run of `length` characters as one number."""
    windows = np.lib.stride_tricks.sliding_window_view(text_n, length)
    return windows @ num_classes ** np.arange(length - 1, -1, -1)


def main() -> None:
    """Fit and print."""
    print(f"movie_snippets  accuracy {snippets():.3f}  TF-IDF and logistic regression")
    print(f"spoken_digits   accuracy {digits():.3f}  moments and logistic regression")
    for part, (bits, accuracy) in jane_austen().items():
        print(
            f"jane_austen     accuracy {accuracy:.3f}  5-grams, {bits:.3f} bits a character, {part}"
        )


if __name__ == "__main__":
    commands.run(main)
