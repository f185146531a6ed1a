"""Trials at places of the map: one training, timed where compute, bytes or delay rule."""

from pathlib import Path

import pytest
import yaml

from experiments.advise.map.trial_times import PLACES, on_map
from experiments.advise.tuning.trials import Trial, best_of, by_whom
from experiments.plan.compose import compose_config
from experiments.plan.identity import plain
from experiments.training.metrics import MetricsRow
from host.errors import UserError
from netsim.conditions.link import wire_per_payload

COMPUTE_S = 0.18
WORDS = ["model=mlp", "model.hidden=[8]", "backend=sim", "workers=4"]


def trial(folder: Path, words: str, accuracies: list[float]) -> Trial:
    folder.mkdir()
    config = plain(compose_config([*WORDS, *words.split()]))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    rows = [
        MetricsRow(kind="evaluation", step=step, time_s=1e-3 * step, accuracy=accuracy)
        for step, accuracy in zip((10, 20, 30), accuracies, strict=True)
    ]
    return Trial(contestant="one", words=words, net="none", folder=folder, evaluations=rows)


def test_all_reduce_takes_what_rules_at_each_place(tmp_path):
    own = on_map([trial(tmp_path / "run", "algo=allreduce", [0.1, 0.2, 0.3])])
    assert [one.at for one in own] == list(PLACES)
    assert {one.net for one in own} == {"none"}
    a_step = {one.at: one.evaluations[2].time_s / 30 / COMPUTE_S for one in own}
    (bytes_rho, _), (_, delay_lambda) = PLACES["bytes"], PLACES["delay"]
    # Bytes: nothing is hidden but the backward pass. Delay: 4 workers halve and double in 4 rounds.
    ideal = bytes_rho * wire_per_payload()
    assert ideal < a_step["bytes"] < ideal + 1.1
    assert a_step["delay"] == pytest.approx(1 + 4 * delay_lambda, rel=0.1)
    assert 1 < a_step["compute"] < 1.2
    assert [row.accuracy for row in own[0].evaluations] == [0.1, 0.2, 0.3]


def test_what_depends_on_timing_has_no_place(tmp_path):
    with pytest.raises(UserError, match=r"AsyncModelAverage depend on timing, .*: leave it out"):
        on_map([trial(tmp_path / "run", "algo=async", [0.1, 0.2, 0.3])])


def test_a_trial_whose_configuration_is_gone_is_named(tmp_path):
    own = trial(tmp_path / "run", "algo=allreduce", [0.1, 0.2, 0.3])
    (tmp_path / "run/config.yaml").write_text("algo: {}\n")
    with pytest.raises(UserError, match=r"config\.yaml is no whole configuration of a run"):
        on_map([own])


def test_the_same_trials_have_another_best_where_compute_rules_and_where_bytes_do(tmp_path):
    often, seldom = "algo=local_sgd algo.interval=2", "algo=local_sgd algo.interval=10"
    trials = [
        trial(tmp_path / "often", often, [0.1, 0.8, 0.8]),
        trial(tmp_path / "seldom", seldom, [0.1, 0.2, 0.8]),
    ]
    best = best_of(by_whom(on_map(trials)), 0.5)
    assert best["one", "compute"][0].words == often
    assert best["one", "bytes"][0].words == seldom
