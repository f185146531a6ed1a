"""What a search says is left, on a clock of the test's own, held against what it took."""

import math

import numpy as np
import pytest

from experiments.advise.tuning.left import Took, TrialsLeft

FACTOR = 1.5


class Clock:
    def __init__(self):
        self.now_s = 1000.0

    def __call__(self):
        return self.now_s


def searched(kinds, seconds):
    """What was said once each trial had begun, and what was so once the first half of all trials
    was known to be of such kinds; both with the time."""
    clock = Clock()
    work, took, said = TrialsLeft(values=1000, clock=clock), [], []
    for number, (is_reused, trial_s) in enumerate(zip(kinds, seconds, strict=True)):
        work.known(took, len(kinds) - number)
        work.begin_trial()
        clock.now_s += 0.01
        work.is_of(is_reused=is_reused)
        said.append((clock.now_s, work.left_s))
        clock.now_s += trial_s - 0.01
        took.append(work.end_trial())
    work.known(took, 0)
    assert work.left_s == 0
    return said, clock.now_s


def factors(said, end_s, begun_s=1000.0):
    after = [one for one in said if one[0] - begun_s >= 0.1 * (end_s - begun_s)]
    return [max(s / (end_s - at_s), (end_s - at_s) / s) for at_s, s in after]


def test_the_last_trials_are_told_right_whether_they_train_or_not():
    for last in (False, True):
        kinds = [False, True] * 5 + [last]
        said, end_s = searched(kinds, [1.0 if kind else 20.0 for kind in kinds])
        assert factors(said[-1:], end_s)[0] == pytest.approx(1, abs=0.02)


def naive_factor(kinds, seconds):
    """Where every trial, whatever its kind, counts as a typical one, after a tenth."""
    whole_s = sum(seconds)
    number = next(n for n in range(1, 30) if sum(seconds[:n]) >= 0.1 * whole_s)
    said_s = np.mean(seconds[:number]) * (len(kinds) - number)
    left_s = whole_s - sum(seconds[:number])
    return max(said_s / left_s, left_s / said_s)


def test_a_mix_of_trials_is_told_within_a_factor_after_a_tenth():
    found, naive = [], []
    for seed in range(200):
        chance = np.random.default_rng([26, seed])
        kinds = [False, *map(bool, chance.random(29) < 0.4)]
        seconds = [(1.0 if kind else 20.0) * chance.lognormal(0, 0.2) for kind in kinds]
        found.append(factors(*searched(kinds, seconds))[0])
        naive.append(naive_factor(kinds, seconds))
    assert np.mean(np.array(found) <= FACTOR) > 0.75
    assert np.mean(np.array(naive) <= FACTOR) < 0.6


def test_where_each_trial_trains_its_time_is_that_of_the_others():
    work = TrialsLeft(values=math.inf, clock=Clock())
    work.known([Took(10.0, False)] * 2, 8)
    assert work.left_s == pytest.approx(80)


def test_other_processes_take_their_part():
    work = TrialsLeft(values=math.inf, clock=Clock())
    work.known([Took(10.0, False)] * 4, 8, at_once=2)
    assert work.left_s == pytest.approx(40)
    work.begin_trial()
    work.is_of(is_reused=False)
    assert work.left_s == pytest.approx(10 + 30)


def test_nothing_is_told_before_a_trial_is_done():
    work = TrialsLeft(values=1000, clock=Clock())
    work.known([], 8)
    work.begin_trial()
    assert not work.has_told


def test_where_few_settings_have_values_of_their_own_most_trials_take_earlier_ones():
    work = TrialsLeft(values=4, clock=Clock())
    work.known([Took(50.0, False), Took(20.0, False), Took(20.0, False), Took(1.0, True)], 12)
    assert work.left_s == pytest.approx(12 + 19 * (1 - 0.75**12))  # one of four is left to train
    work.known([*[Took(20.0, False)] * 4, Took(1.0, True)], 12)
    assert work.left_s == pytest.approx(12)
