"""Metrics of texts, counted by hand."""

import math

import numpy as np
import pytest
import torch

from experiments.tasks.own import answers
from experiments.tasks.own.word_errors import ratio_of, word_errors
from experiments.tasks.target import Target
from experiments.training.scores import Score

ANSWERS = [
    ("The Eiffel Tower!", ["Eiffel tower"], 1, 1),
    ("in Paris, France", ["Paris", "the city of Paris"], 0, 0.5),  # 1 of 3 said, 1 of 1 true
    ("a cat a cat", ["cat dog cat"], 0, 0.8),  # cat twice: 2 of 2 said, 2 of 3 true
    ("Rome", ["Paris"], 0, 0),
    ("the", ["an"], 1, 0),  # nothing is left of either
]
WORDS = [("a b c", "a b c", 0), ("a x c", "a b c", 1), ("b c d", "a b c", 2), ("", "a b", 2)]


@pytest.mark.parametrize(("said", "truths", "exact", "f1"), ANSWERS)
def test_answers_are_judged_as_by_the_official_script(said, truths, exact, f1):
    assert answers.exact_match(said, truths) == exact
    assert answers.f1(said, truths) == pytest.approx(f1)


def test_the_answer_is_the_best_span_of_the_text():
    outputs = np.zeros((2, 40))
    outputs[0, [0, 5, 20]] = 9, 3, 4
    outputs[1, [39, 4, 25]] = 8, 5, 3
    is_text = np.arange(40) > 1
    # 20 to 39 is better than 20 to 25; 5 to 39 would be too long, and 5 to 4 end before it begins.
    assert answers.best_span(outputs, is_text) == (20, 39)
    outputs[1, 39] = 0
    assert answers.best_span(outputs, is_text) == (20, 25)


@pytest.mark.parametrize(("said", "truth", "errors"), WORDS)
def test_words_that_are_wrong(said, truth, errors):
    assert word_errors(said, truth) == (errors, len(truth.split()))


def test_word_errors_of_workers_add_up():
    words = ratio_of(lambda ids: " ".join("abcd"[number] for number in ids))
    said = torch.tensor([[[0, 1, 2], [3, 3, 3]], [[0, 0, 0], [1, 1, 1]]])
    truth = torch.tensor([[[0, 2, 2], [3, -1, -1]], [[0, 0, 0], [-1, -1, -1]]])
    sums = words(torch.nn.functional.one_hot(said, 4).float(), truth, np.zeros((2, 2), int))
    assert sums.tolist() == [[1, 4], [0, 3]]


def test_no_target_is_reached_where_the_true_texts_have_no_word():
    one_hot = torch.nn.functional.one_hot(torch.tensor([[[0, 1]]]), 4).float()
    sums = ratio_of(lambda ids: "")(one_hot, torch.tensor([[[0, 2]]]), np.zeros((1, 1), int))
    score = Score().of_sums(sums[0].tolist())
    assert math.isnan(score)
    assert not Target(metric="word_error_rate", value=1.0).is_reached(score)


def test_outputs_that_are_no_numbers_still_point_into_the_text():
    is_text = np.arange(40) > 1
    for bad in (np.nan, np.inf, -np.inf):
        first, last = answers.best_span(np.full((2, 40), bad), is_text)
        assert 2 <= first <= last < 40
