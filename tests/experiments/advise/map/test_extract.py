import math

import pandas as pd
import pytest

from experiments.advise.map import extract
from host.errors import UserError

CURVES = {
    "a": pd.DataFrame({"step": [26, 52, 78], "accuracy": [0.7, 0.86, 0.84]}),
    "b": pd.DataFrame({"step": [26, 52, 78], "accuracy": [0.7, 0.8, 0.8]}),
}


def steps(last, accuracy):
    runs = pd.DataFrame({"folder": ["a", "b"], "steps": [78, last]})
    return extract._steps(runs, CURVES, accuracy, max_steps=78)


def test_steps_are_those_of_the_first_evaluation_that_is_there():
    assert steps(78, 0.8) == [52, 52]
    assert steps(78, 0.85) == [52, math.inf]


def test_a_run_that_ended_early_tells_nothing_of_a_harder_target():
    assert steps(77, 0.85) is None
    assert steps(77, 0.8) == [52, 52]


def test_networks_that_differ_in_an_accuracy_are_refused():
    rows = {"kind": "evaluation", "algo": "sgp", "seed": 1, "step": 26}
    alike, other = ({**rows, "net": net, "accuracy": 0.7} for net in ("none", "wan"))
    runs = pd.DataFrame({"algo": ["sgp"]})
    extract._check_alike(runs, pd.DataFrame([alike, other]))
    with pytest.raises(UserError, match="sgp, seed 1: networks differ in the accuracy at step 26"):
        extract._check_alike(runs, pd.DataFrame([alike, {**other, "accuracy": 0.71}]))


def test_a_field_that_has_changed_since_is_refused():
    recorded = {"_target_": "old.module.LocalSGD", "interval": 8, "outer": {"lr": 0.7}}
    today = {"_target_": "bagua_algos.LocalSGD", "interval": 8, "outer": {"lr": 0.7}, "more": 1}
    extract._check_fields("local_sgd", recorded, today)
    for changed in ({"interval": 9}, {"outer": {"lr": 1.0}}, {"_target_": "old.module.SlowMo"}):
        with pytest.raises(UserError, match=r"local_sgd: .* train it again"):
            extract._check_fields("local_sgd", recorded | changed, today)
