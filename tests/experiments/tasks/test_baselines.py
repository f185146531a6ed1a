import numpy as np
import pytest

from experiments.tasks.baselines import NGrams, score


def test_the_probabilities_of_any_context_sum_to_one():
    text = np.random.default_rng(0).integers(0, 4, 500)
    grams = NGrams(text, order=3, num_classes=5)
    contexts = np.stack(np.meshgrid(range(5), range(5)), -1).reshape(-1, 2)
    p_nc = grams.probabilities(contexts)
    np.testing.assert_allclose(p_nc.sum(1), 1)
    assert (p_nc > 0).all()


def test_witten_and_bell_by_hand():
    grams = NGrams(np.array([0, 1, 0, 1, 0, 2]), order=2, num_classes=3)
    # After 0: 1 twice and 2 once, two different ones. Alone: 3, 2 and 1 of 6, three different ones.
    alone = (np.array([3, 2, 1]) + 3 / 3) / (6 + 3)
    after_0 = (np.array([0, 2, 1]) + 2 * alone) / (3 + 2)
    np.testing.assert_allclose(grams.probabilities(np.array([[0], [2]])), [after_0, alone])


def test_a_text_without_surprises_takes_few_bits():
    text = np.tile([0, 1, 2, 3], 200)
    bits, accuracy = score(NGrams(text, order=3, num_classes=4), text, 3)
    assert bits < 0.02 and accuracy == 1
    noise = np.random.default_rng(0).integers(0, 4, 4_000)
    bits, accuracy = score(NGrams(noise[:2_000], order=1, num_classes=4), noise[2_000:], 1)
    assert bits == pytest.approx(2, abs=0.01) and accuracy == pytest.approx(0.25, abs=0.04)
