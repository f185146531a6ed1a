"""Records of real runs, as points of the map: made up, of the map's own times."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from experiments.advise.map.job import Job
from experiments.advise.map.real import page, places
from experiments.advise.map.standing import sent_by
from experiments.advise.map.times import times_s
from experiments.advise.map.trainings import load
from experiments.plan.compose import compose_config
from experiments.plan.identity import plain
from experiments.report.statistics import prediction_errors
from host.errors import UserError

(TRAINED,) = (t for t in load()[1] if (t.task, t.workers) == ("fashion_mnist", 8))
BASELINE, OTHER = TRAINED.of("allreduce")[0], TRAINED.of("ef_signsgd")[0]
COMMON = ("experiment=reference", "profile=null")
(REACHED,) = (goal.accuracy for goal in TRAINED.goals if goal.points == 1)
STEPS = {0: 60, 1: 72, 2: 66}
"""By seed, until the target."""
MODEL_MB = sent_by(TRAINED, BASELINE, 8).num_bytes / 1e6
JOB = Job(compute_ms=10, model_mb=MODEL_MB, workers=8, rate_mbit=100, delay_ms=1)


def write(
    runs: Path, training, slower: float = 1.0, simulated: float | None = 1.0, **words
) -> None:
    """Runs that take so many times as long as on the map, real and, if any, simulated."""
    write_by("gloo", runs, training, slower, **words)
    if simulated is not None:
        write_by("sim", runs, training, simulated)


def write_by(
    backend: str,
    runs: Path,
    training,
    slower: float,
    *,
    seeds=STEPS,
    net="slow_tcp",
    more=("workers=8",),
):
    """Runs of one kind of workers."""
    words = [*COMMON, f"backend={backend}", *training.words.split(), f"net={net}", *more]
    config = plain(compose_config(words))
    for seed in seeds:
        folder = runs / f"{backend}_{training.algo}_{net}_{seed}"
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        environment = {"overrides": [*words, f"seed={seed}"], "git_commit": "c", "git_dirty": False}
        (folder / "summary.json").write_text(json.dumps({"algo": "a", "status": "completed"}))
        (folder / "environment.json").write_text(json.dumps(environment))
        steps = np.array([6.0, STEPS[seed], 156.0])
        ends_s = slower * times_s(sent_by(TRAINED, training, 8), JOB, steps)
        rows = [
            {"kind": "evaluation", "step": int(step), "time_s": end_s, "accuracy": accuracy}
            for step, end_s, accuracy in zip(steps, ends_s, (0.1, REACHED, 0.1), strict=True)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def runs(tmp_path):
    """The folder, with its targets and a profile of 10 ms a step."""
    (tmp_path / "targets.yaml").write_text(
        yaml.safe_dump({goal.points: goal.accuracy for goal in TRAINED.goals})
    )
    profile = {
        **{"device": "d", "sharing": 8, "setting": {}, "late_s": 0.0, "jobs": []},
        **{"forward_s": 0.003, "ready_s": [0.005], "backward_s": 0.006, "optimizer_s": 0.001},
    }
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/allreduce.yaml").write_text(yaml.safe_dump(profile))
    return tmp_path


def test_runs_that_all_take_somewhat_longer_lie_where_the_map_says(runs):
    longer = 1 + max(prediction_errors().values()) / 2
    write(runs, BASELINE, 1.2)
    write(runs, OTHER, 1.2, longer)
    (place,) = places(runs)
    assert pytest.approx(4 * 109_578 / 1e6, rel=0.002) == MODEL_MB  # a bucket is padded
    assert (place.job.rho, place.job.lambda_) == pytest.approx((JOB.rho, JOB.lambda_))
    baseline, other = place.timed
    assert baseline.training == BASELINE
    assert other.steps.tolist() == list(STEPS.values())
    assert other.real_s == pytest.approx(1.2 * other.map_s)
    assert other.simulated_s == pytest.approx(longer * other.map_s)
    leads = [place.lead(other, by)[0] for by in ("real", "simulated", "map")]
    assert leads[0] == pytest.approx(leads[2]) == pytest.approx(longer * leads[1]) and leads[0] > 2
    assert place.agrees(other, "map") and place.agrees(other, "simulated")
    text = page([place])
    first = "the first algorithm is the real one, or ties with it, on"
    assert f"Of the map: {first} 1 of 1 network; 1 of 1 lead agree." in text
    assert "slow_tcp: ef_signsgd is first; simulated, ef_signsgd; by the map, ef_signsgd." in text


def test_a_lead_that_is_lost_on_real_workers_does_not_agree(runs):
    """The map does not know what the host costs; simulated workers may."""
    write(runs, BASELINE)
    write(runs, OTHER, 50.0, 50.0)
    (place,) = places(runs)
    assert not place.agrees(place.timed[1], "map") and place.agrees(place.timed[1], "simulated")
    text = page([place])
    first = "the first algorithm is the real one, or ties with it, on"
    assert f"Of the map: {first} 0 of 1 network; 0 of 1 lead agree." in text
    assert f"{first} 1 of 1 network; 1 of 1 lead agree." in text
    assert "slow_tcp: allreduce is first; simulated, allreduce; by the map, ef_signsgd." in text
    agree = [
        [cell.strip() for cell in line.split("|")][-4:-1:2]
        for line in text.splitlines()
        if "slow_tcp |" in line
    ]
    assert agree == [["-", "-"], ["yes", "no"]]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"simulated": None}, "has no run of simulated workers beside it"),
        ({"seeds": (0, 1)}, "other seeds than others on slow_tcp"),
        ({"net": "none"}, "is on no network"),
        ({"more": ("workers=32",)}, "is of another task, model or number of workers than"),
        ({"more": ("workers=9",)}, "the map has no training of fashion_mnist_mlp with 9 workers"),
    ],
)
def test_what_is_no_point_of_the_map_is_refused(runs, how, said):
    write(runs, BASELINE)
    write(runs, OTHER, **how)
    with pytest.raises(UserError, match=said):
        places(runs)


def test_a_simulated_run_that_diverged_has_no_time(runs):
    write(runs, BASELINE)
    write(runs, OTHER)
    for folder in runs.glob("sim_ef_signsgd_*"):
        (folder / "summary.json").write_text(json.dumps({"algo": "a", "status": "diverged"}))
    (place,) = places(runs)
    assert np.isinf(place.timed[1].simulated_s).all()
    assert np.isfinite(place.timed[1].real_s).all()
    page([place])


def test_who_misses_the_target_has_no_lead_and_ties_with_nobody(runs):
    """With two of three seeds, so that the interval of the third holds anything."""
    write(runs, BASELINE)
    write(runs, OTHER)
    for seed in (0, 1):
        for folder in (f"gloo_ef_signsgd_slow_tcp_{seed}", f"sim_ef_signsgd_slow_tcp_{seed}"):
            file = runs / folder / "metrics.jsonl"
            file.write_text(file.read_text().replace(str(REACHED), "0.3"))
    (place,) = places(runs)
    assert place.firsts("real") == place.firsts("map") == ["allreduce"]
    text = page([place])
    assert "on 1 of 1 network; 0 of 0 leads agree." in text
    (row,) = (line for line in text.splitlines() if "| ef_signsgd |" in line)
    assert row.endswith("| ef_signsgd | missed" + " | -" * 10 + " |")


def test_targets_are_wanted(runs):
    write(runs, BASELINE)
    (runs / "targets.yaml").unlink()
    with pytest.raises(UserError, match=r"has no targets\.yaml"):
        places(runs)


def test_all_reduce_is_wanted(runs):
    write(runs, OTHER)
    with pytest.raises(UserError, match="has not one setting of allreduce"):
        places(runs)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(UserError, match="has no record of real workers: run the part real"):
        places(tmp_path)
