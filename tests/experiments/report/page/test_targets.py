"""Targets that the page offers, and what is known at them."""

import math

import numpy as np
import pandas as pd

from experiments.report.page.targets import MAX_TARGETS, Verdicts, grid, verdicts
from experiments.report.targets.curves import Curves
from experiments.report.targets.times import Situation, any_unread, times_of_all


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


def run(*, steps: int, **others: object) -> dict[str, object]:
    """A run that completed."""
    frame = {"status": "completed", "seed": 0, "steps": steps, "stops_at_target": False}
    return frame | {"time_to_accuracy_s": math.nan, "is_unread": False} | others


def two_curves() -> Curves:
    """Scores up to 0.6 in two evaluations, 10 steps apart, and up to 0.9 in three."""
    sequences = [[0.2, 0.6], [0.3, 0.6, 0.9], [5.0, 6.0], [1.0, 2.0, 3.0], [10, 20], [10, 20, 30]]
    ids = {"score": [0, 1], "time_s": [2, 3], "step": [4, 5], "bytes_sent": [4, 5]}
    return Curves([np.array(own, float) for own in sequences], ids)


def letters(curves: Curves, first: dict[str, object], second: dict[str, object]) -> Verdicts:
    """What "short" with a first run and "allreduce" with a second one are at 0.5, 0.9 and 0.95."""
    runs = [pd.DataFrame([own], index=[k]) for k, own in enumerate((first, second))]
    rows = [setting("short", seeds=(0,)), setting("allreduce", seeds=(0,))]
    [found] = verdicts([Situation(rows, runs)], curves, np.array([0.5, 0.9, 0.95]))
    return found


def test_a_run_that_ended_before_others_is_not_known_at_harder_targets_than_its_own():
    found = letters(two_curves(), run(steps=20), run(steps=30))
    assert found.ties == ["-f", "u-", "u-"]
    assert found.baselines == [1, -1, -1]


def test_a_run_that_ended_at_its_target_is_not_known_at_harder_ones_though_none_was_longer():
    for also in (False, True):
        short, longest = run(steps=20, stops_at_target=True), run(steps=30, stops_at_target=also)
        assert letters(two_curves(), short, longest).ties == ["-f", "u-", "uu" if also else "u-"]
    rows, alone = [setting("allreduce", target_score=0.95)], [pd.DataFrame([longest], index=[1])]
    found = times_of_all(Situation(rows, alone), two_curves(), np.array([0.95, 0.99]))
    assert np.isinf(found[0]).all(), "it was to end at its target, and missed it"


def test_a_run_whose_last_evaluations_are_lost_has_the_time_that_it_recorded():
    for recorded_s in (40.0, math.nan):
        cut = run(steps=40, time_to_accuracy_s=recorded_s, is_unread=True)
        rows = [setting("short", target_score=0.95), setting("allreduce", target_score=0.95)]
        runs = [pd.DataFrame([cut], index=[0]), pd.DataFrame([run(steps=30)], index=[1])]
        situation = Situation(rows, runs)
        assert any_unread(situation)
        times = times_of_all(situation, two_curves(), np.array([0.5, 0.9, 0.95]))
        told = math.inf if math.isnan(recorded_s) else recorded_s
        np.testing.assert_array_equal(times[0], [[5.75, math.nan, told]])


def test_a_score_that_is_no_number_reaches_nothing():
    scores, seconds = np.array([math.nan, 0.2, math.nan, 0.9]), np.arange(1.0, 5.0)
    curves = Curves(
        [scores, seconds], {"score": [0], "time_s": [1], "step": [1], "bytes_sent": [1]}
    )
    runs = pd.DataFrame([run(steps=4)])
    situation = Situation([setting("allreduce", seeds=(0,))], [runs])
    found = times_of_all(situation, curves, np.array([0.1, 0.5, 0.95]))
    assert found[0].tolist() == [[2.0, 4.0, math.inf]]


def test_runs_without_a_target_tie_at_one_as_those_that_have_it():
    """By Holm's correction, with the deviation of all: intervals alone tell the two apart."""
    times = {"allreduce": [10.0, 10.1, 10.2], "close": [10.5, 10.6, 10.7], "noisy": [9, 30, 90]}
    sequences = [np.array([time_s]) for own in times.values() for time_s in own]
    scores = [np.array([0.6])] * len(sequences)
    ids = {name: list(range(9)) for name in ("step", "bytes_sent", "time_s")}
    curves = Curves([*sequences, *scores], ids | {"score": list(range(9, 18))})
    runs = [
        pd.DataFrame([run(steps=1, seed=seed) for seed in range(3)], index=range(at, at + 3))
        for at in (0, 3, 6)
    ]
    found = []
    for target in (0.5, math.nan):
        own = {"runs": 3, "seeds": (0, 1, 2), "target": target}
        rows = [setting(label, **own) for label in times]
        [told] = verdicts([Situation(rows, runs)], curves, np.array([0.5]))
        found.append(told.ties)
    assert found[0] == found[1]
    assert found[0][0][1] == "t"
