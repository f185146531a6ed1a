"""Targets that the page offers, and what is known at them."""

import math

import numpy as np
import pandas as pd

from experiments.report.page.targets import MAX_TARGETS, grid, verdicts
from experiments.report.targets.curves import Curves
from experiments.report.targets.times import Situation, times_of_all


def test_a_grid_is_round_goes_beyond_the_best_and_has_the_recorded_target():
    scores = np.linspace(0.1, 0.937, 500)
    targets = grid(scores, [0.8125], "accuracy")
    assert targets == sorted(targets) and 0.8125 in targets
    assert targets[-1] > 0.937 >= targets[-2] and len(targets) <= MAX_TARGETS + 3
    others = [target for target in targets if target != 0.8125]
    assert all(repr(target) == f"{target:.2f}".rstrip("0") for target in others)


def test_where_lower_is_better_targets_fall():
    targets = grid(np.linspace(4.0, 1.51, 100), [2.0], "loss")
    assert targets == sorted(targets, reverse=True) and targets[-1] < 1.51 <= targets[-2]


def test_targets_without_a_score_or_with_one():
    assert grid(np.empty(0), [0.9], "accuracy") == [0.9]
    assert grid(np.array([math.nan]), [], "accuracy") == []
    assert {0.5, 0.9} <= set(grid(np.array([0.5, 0.5]), [0.9], "accuracy"))


def test_of_many_settings_there_are_fewer_targets():
    scores = np.linspace(0.1, 0.937, 500)
    assert len(grid(scores, [], "accuracy", 2000)) < len(grid(scores, [], "accuracy", 20)) / 2


def setting(label: str, **others: object) -> dict[str, object]:
    row = {"label": label, "name": label, "algo": label, "metric": "accuracy", "target_score": 0.5}
    return row | {"shared_gpu": False, "is_baseline": False, "mb_a_step": 1.0, "runs": 1} | others


def test_a_run_that_ended_before_others_is_not_known_at_harder_targets_than_its_own():
    curves = Curves(
        [np.array([0.2, 0.6]), np.array([0.3, 0.6, 0.9]), np.array([1.0, 2.0, 3.0])],
        {"score": [0, 1], "time_s": [2, 2], "step": [2, 2], "bytes_sent": [2, 2]},
    )
    curves.sequences.append(np.array([5.0, 6.0]))
    curves.ids["time_s"] = [3, 2]
    frame = {"status": "completed", "seed": 0}
    runs = [
        pd.DataFrame([frame | {"steps": 20}], index=[0]),
        pd.DataFrame([frame | {"steps": 30}], index=[1]),
    ]
    rows = [setting("short", seeds=(0,)), setting("allreduce", seeds=(0,))]
    [found] = verdicts([Situation(rows, runs)], curves, np.array([0.5, 0.9, 0.95]))
    assert found.ties == ["-f", "u-", "u-"]
    assert found.baselines == [1, -1, -1]


def test_a_score_that_is_no_number_reaches_nothing():
    scores, seconds = np.array([math.nan, 0.2, math.nan, 0.9]), np.arange(1.0, 5.0)
    curves = Curves(
        [scores, seconds], {"score": [0], "time_s": [1], "step": [1], "bytes_sent": [1]}
    )
    runs = pd.DataFrame([{"status": "completed", "seed": 0, "steps": 40}])
    situation = Situation([setting("allreduce", seeds=(0,))], [runs])
    found = times_of_all(situation, curves, np.array([0.1, 0.5, 0.95]))
    assert found[0].tolist() == [[2.0, 4.0, math.inf]]
