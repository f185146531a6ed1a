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
