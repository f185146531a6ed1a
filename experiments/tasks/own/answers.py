"""How good an answer to a question is: exact match and F1 of SQuAD, by its official script, v1.1.

Rajpurkar et al., arXiv 1606.05250. Upper case, punctuation, articles and spaces do not count. F1 is
of the words that the answer has in common with a true one; the best true answer counts.

Shapes: t places, of which each has an output for a beginning and one for an end.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

LONGEST = 30
"""Tokens of an answer, in BERT's script."""

_LARGE = 1e100
"""Stands for infinity, and below zero for NaN, among outputs."""
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(text: str) -> str:
    """What counts of an answer."""
    plain = _ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION))
    return " ".join(plain.split())


def exact_match(answer: str, truths: Sequence[str]) -> float:
    """1 if the answer is one of the true ones, else 0."""
    return float(normalized(answer) in map(normalized, truths))


def f1(answer: str, truths: Sequence[str]) -> float:
    """That to the nearest true answer."""
    return max(_f1_of_words(normalized(answer).split(), normalized(t).split()) for t in truths)


def best_span(outputs_2t: np.ndarray, is_text_t: np.ndarray) -> tuple[int, int]:
    """The first and the last place of the answer with the largest sum of outputs, among the places
    that are of the text; an answer has at most `LONGEST` places. An output of NaN is the least.
    """
    outputs_2t = outputs_2t.astype(np.float64)
    finite_2t = np.nan_to_num(outputs_2t, nan=-_LARGE, posinf=_LARGE, neginf=-_LARGE)
    begins, ends = np.where(is_text_t, finite_2t, -np.inf)
    sums = begins[:, None] + ends[None, :]
    places = np.arange(len(begins))
    lengths = places[None, :] - places[:, None]
    sums[(lengths < 0) | (lengths >= LONGEST)] = -np.inf
    first, last = np.unravel_index(int(sums.argmax()), sums.shape)
    return int(first), int(last)


def _f1_of_words(words: list[str], truth: list[str]) -> float:
    num_common = sum((Counter(words) & Counter(truth)).values())
    return 2 * num_common / (len(words) + len(truth)) if num_common else 0.0
