import math
from dataclasses import replace

import numpy as np
import pytest

from experiments.advise.map.trainings import load
from experiments.plan.overrides import values_of
from experiments.report.tuned import load_targets
from tests.paths import ROOT


@pytest.mark.parametrize("trained", load()[1], ids=lambda t: f"{t.task}-{t.workers}")
def test_goals_are_the_frozen_targets(trained):
    targets = load_targets(ROOT / f"results/map/{trained.task}/w{trained.workers}")
    assert {goal.points: goal.accuracy for goal in trained.goals} == targets
    assert list(targets) == [2.0, 1.0, 0.5, 0.2]


@pytest.mark.parametrize("trained", load()[1], ids=lambda t: f"{t.task}-{t.workers}")
def test_each_setting_was_chosen_and_harder_goals_take_no_fewer_steps(trained):
    for own in trained.trainings:
        assert len({len(steps) for steps in own.steps}) == 1
        assert len(own.steps[0]) == len(trained.seeds)
        steps = np.array(own.steps)
        assert (steps[1:] >= steps[:-1]).all()
        assert own.words.startswith("algo=")
        assert values_of(own.words.split())["algo"] == own.algo


def test_spacing_covers_every_ratio_of_true_steps():
    """Whoever is recorded after k evaluations got there after more than k - 1 of them."""
    own = load()[1][0]
    (training, *_) = own.trainings

    def spacing(steps):
        few = replace(training, steps=((float(steps),) * len(own.seeds),))
        return replace(own, eval_every=4, trainings=(few,)).spacing(0)

    assert (1 + spacing(8)) == pytest.approx(8 / (8 - 4))
    assert (1 + spacing(40)) == pytest.approx(40 / (40 - 4))
    assert spacing(4) == math.inf
    assert spacing(math.inf) == 0
