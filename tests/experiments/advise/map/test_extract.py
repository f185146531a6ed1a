"""The records of the study map, as its trainings: steps to each target, and which trial tuned."""

import json
import math
from pathlib import Path

import pytest
import yaml

from experiments.advise.map.extract import Run, extract, steps_error
from experiments.plan.compose import compose_config
from experiments.plan.identity import plain
from experiments.training.metrics import MetricsRow
from host.errors import UserError

COMMON = ("backend=sim", "model=mlp", "optim.lr=0.02", "workers=4", "max_steps=30", "eval_every=10")
TARGETS = {2.0: 0.78, 1.0: 0.79, 0.5: 0.795, 0.2: 0.798}
CURVES = {0: (0.78, 0.9, 0.7), 1: (0.5, 0.79, 0.79)}
"""By seed, after 10, 20 and 30 steps; seed 0 falls below a target that it has reached."""


def record(
    folder: Path, words: str, seed: int, accuracies, *, dirty=False, more=(), status="completed"
) -> None:
    own = folder / f"{words.replace(' ', '_')}_{seed}"
    own.mkdir(parents=True)
    overrides = [*COMMON, *words.split(), *more, "net=none", f"seed={seed}"]
    (own / "config.yaml").write_text(yaml.safe_dump(plain(compose_config(overrides))))
    environment = {"overrides": overrides, "git_commit": "c0ffee", "git_dirty": dirty}
    (own / "environment.json").write_text(json.dumps(environment))
    (own / "summary.json").write_text(json.dumps({"algo": "a", "status": status}))
    rows = [
        {"kind": kind, "step": step, "time_s": 1.0, "accuracy": accuracy}
        for step, accuracy in zip((10, 20, 30), accuracies, strict=True)
        for kind in ("step", "evaluation")
    ]
    (own / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def scored(runs: Path, words: str, *, seeds=(0, 1), dirty: bool = False) -> None:
    folder = runs / "map_mnist5k_w4"
    folder.mkdir(exist_ok=True, parents=True)
    for seed in seeds:
        record(folder, words, seed, CURVES[seed], dirty=dirty, more=("target_accuracy=0.79",))
    (folder / "targets.yaml").write_text(yaml.safe_dump(TARGETS))
    tuned(runs)


def tuned(runs: Path) -> None:
    """Its trials' targets are 0.785, 0.795, 0.8 and 0.803."""
    folder = runs / "map_mnist5k_baseline/w4"
    for seed, final in ((1000, 0.805), (1001, 0.6), (1002, 0.9)) if not folder.exists() else ():
        more = ("data.for_tuning=true",)
        record(folder, "algo=allreduce", seed, (0.1, 0.95, final), more=more)


def tried(runs: Path, words: str, accuracies=(0.1, 0.2, 0.795)) -> None:
    more = ("data.for_tuning=true",)
    record(runs / "map_mnist5k_trials/w4", words, 1000, accuracies, more=more)


def extracted(runs: Path):
    extract(runs, runs / "found.yaml")
    return yaml.safe_load((runs / "found.yaml").read_text())


def test_steps_are_where_a_line_between_two_evaluations_is_there(tmp_path):
    tried(tmp_path, "algo=local_sgd algo.interval=3 lr_scale=2.0")
    tried(tmp_path, "algo=local_sgd algo.interval=5 lr_scale=2.0", (0.1, 0.1, 0.1))
    scored(tmp_path, "algo=local_sgd algo.interval=3 lr_scale=2.0")
    found = extracted(tmp_path)
    assert (found["source"]["num_runs"], found["source"]["num_trials"]) == (2, 2)
    assert found["source"]["commits"] == ["c0ffee"]
    (trained,) = found["trained"]
    assert (trained["task"], trained["workers"], trained["seeds"]) == ("mnist5k", 4, [0, 1])
    assert [goal["accuracy"] for goal in trained["goals"]] == list(TARGETS.values())
    (own,) = trained["trainings"]
    assert own["words"] == "algo=local_sgd algo.interval=3 lr_scale=2.0"
    assert own["config"]["interval"] == 3
    assert own["trial_steps"] == [29.83, 30, math.inf, math.inf]
    assert own["steps"] == [[10, 19.66], [10.83, 20], [11.25, math.inf], [11.5, math.inf]]


def runs_of(*curves):
    """A setting's runs of these accuracies, evaluated every ten steps."""
    return [
        Run(
            folder=Path("unused"),
            setting="",
            seed=seed,
            commit="",
            rows=[
                MetricsRow(kind="evaluation", step=10 * k, time_s=0.0, accuracy=accuracy)
                for k, accuracy in enumerate(curve, start=1)
            ],
        )
        for seed, curve in enumerate(curves)
    ]


STRAIGHT = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
BENT = (0.1, 0.2, 0.6, 0.7, 0.8, 0.9)


def test_the_error_of_steps_is_what_half_of_the_evaluations_make_of_them():
    (bent,) = runs_of(BENT)
    assert bent.steps_to(0.4) == 25
    assert bent.steps_by_half(0.4) == [28.0, 22.0]  # after 20 and 40 steps; after 10 and 30
    assert steps_error([runs_of(STRAIGHT, STRAIGHT, STRAIGHT)], 0.35) == 0
    of_bent = pytest.approx(25 / 22 - 1, abs=1e-4)
    assert steps_error([runs_of(BENT, BENT, STRAIGHT)], 0.4) == of_bent
    assert steps_error([runs_of(STRAIGHT, STRAIGHT, BENT)], 0.4) == 0  # of a median seed
    assert steps_error([runs_of(STRAIGHT), runs_of(BENT)], 0.4) == of_bent  # the worst setting's


def test_where_half_of_the_evaluations_miss_it_the_error_is_their_spacing():
    peak = (0.1, 0.2, 0.3, 0.8, 0.3, 0.3)
    assert steps_error([runs_of(peak)], 0.5) == pytest.approx(40 / 30 - 1, abs=1e-4)


def test_what_is_there_by_the_first_evaluation_may_have_been_there_at_any_time():
    early = (0.5, 0.6, 0.7)
    assert steps_error([runs_of(STRAIGHT), runs_of(early, early, STRAIGHT)], 0.45) == math.inf
    assert steps_error([runs_of(early, STRAIGHT, STRAIGHT)], 0.45) == 0


def test_settings_that_mostly_miss_it_have_no_error():
    missed = runs_of(BENT, STRAIGHT, (), STRAIGHT)
    assert steps_error([missed], 0.7) == steps_error([], 0.7) == 0
    assert missed[2].steps_to(0.7) == math.inf


def test_a_setting_that_was_no_trial_is_refused(tmp_path):
    tried(tmp_path, "algo=local_sgd algo.interval=3")
    scored(tmp_path, "algo=local_sgd algo.interval=4")
    with pytest.raises(UserError, match=r"a setting that is no trial's: .* algo\.interval=4"):
        extracted(tmp_path)


@pytest.mark.parametrize(
    ("word", "said"), [("max_steps=90", "max_steps"), ("model.hidden=[9]", r"model\.hidden")]
)
def test_a_trial_of_another_configuration_is_refused(tmp_path, word, said):
    record(tmp_path / "map_mnist5k_trials/w4", "algo=qsgd", 1000, CURVES[0], more=(word,))
    scored(tmp_path, "algo=qsgd")
    with pytest.raises(UserError, match=rf"qsgd_0 and its trial, .*, differ in {said}.*: run one"):
        extracted(tmp_path)


@pytest.mark.parametrize("word", ["batch_size=32", "task.target_accuracy=0.5"])
def test_the_same_configuration_may_have_other_words(tmp_path, word):
    folder, more = tmp_path / "map_mnist5k_trials/w4", ("data.for_tuning=true", word)
    record(folder, "lr_scale=1.0 algo=qsgd", 1000, CURVES[0], more=more)
    scored(tmp_path, "algo=qsgd lr_scale=1.0")
    assert extracted(tmp_path)["source"]["num_runs"] == 2


def test_a_dirty_tree_is_refused(tmp_path):
    tried(tmp_path, "algo=qsgd")
    scored(tmp_path, "algo=qsgd", dirty=True)
    with pytest.raises(UserError, match="is of a dirty tree: run it again from a commit"):
        extracted(tmp_path)


def test_a_run_that_is_not_done_is_refused(tmp_path):
    tried(tmp_path, "algo=qsgd")
    scored(tmp_path, "algo=qsgd")
    record(tmp_path / "map_mnist5k_w4", "algo=sgp", 0, CURVES[0], status="failed")
    with pytest.raises(UserError, match="sgp_0 is not done"):
        extracted(tmp_path)


def test_a_run_that_diverged_misses_all_targets(tmp_path):
    tried(tmp_path, "algo=qsgd")
    scored(tmp_path, "algo=qsgd", seeds=(1,))
    folder, more = tmp_path / "map_mnist5k_w4", ("target_accuracy=0.79",)
    record(folder, "algo=qsgd", 0, CURVES[0], more=more, status="diverged")
    ((own,),) = [trained["trainings"] for trained in extracted(tmp_path)["trained"]]
    assert [steps[0] for steps in own["steps"]] == [math.inf] * 4


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("environment.json", '{"overr', r"environment\.json does not say what was run"),
        ("environment.json", "[]", r"environment\.json does not say what was run"),
        ("environment.json", '{"overrides": 5}', r"environment\.json does not say what was run"),
        ("environment.json", '{"overrides": []}', r"environment\.json does not say its seed"),
        ("config.yaml", "algo: {_targ", r"config\.yaml is no whole configuration of a run"),
        ("config.yaml", "algo: {}\n", r"config\.yaml is no whole configuration of a run"),
        ("config.yaml", None, r"config\.yaml is no whole configuration of a run"),
        ("metrics.jsonl", '{"kind": "eva', "qsgd_0 has no evaluation that can be read: delete it"),
    ],
)
def test_a_record_of_which_a_part_is_gone_is_named(tmp_path, name, text, said):
    tried(tmp_path, "algo=qsgd")
    scored(tmp_path, "algo=qsgd")
    file = tmp_path / "map_mnist5k_w4/algo=qsgd_0" / name
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(UserError, match=said):
        extracted(tmp_path)


def test_settings_of_other_seeds_are_refused(tmp_path):
    tried(tmp_path, "algo=qsgd")
    tried(tmp_path, "algo=sgp")
    scored(tmp_path, "algo=qsgd")
    scored(tmp_path, "algo=sgp", seeds=(1,))
    with pytest.raises(UserError, match=r"algo=sgp: its seeds are \[1\], others have \[0, 1\]"):
        extracted(tmp_path)


def test_two_runs_of_a_setting_and_seed_are_named(tmp_path):
    tried(tmp_path, "algo=qsgd")
    scored(tmp_path, "algo=qsgd")
    again = tmp_path / "map_mnist5k_w4/algo=qsgd_0"
    again.rename(again.with_name("first"))
    record(tmp_path / "map_mnist5k_w4", "algo=qsgd", 0, CURVES[0], more=("target_accuracy=0.79",))
    with pytest.raises(UserError, match=r"qsgd_0 and .*first are two runs of algo=qsgd, seed 0"):
        extracted(tmp_path)


def test_a_folder_without_the_study_is_refused(tmp_path):
    with pytest.raises(UserError, match="has no records of the study map: run its parts first"):
        extracted(tmp_path)


def renamed(runs: Path, task: str) -> None:
    for name in ("map_{}_w4", "map_{}_trials", "map_{}_baseline"):
        (runs / name.format("mnist5k")).rename(runs / name.format(task))


def test_a_folder_may_name_the_model_beside_the_task(tmp_path):
    tried(tmp_path, "algo=qsgd")
    scored(tmp_path, "algo=qsgd")
    renamed(tmp_path, "mnist5k_mlp")
    (trained,) = extracted(tmp_path)["trained"]
    assert trained["task"] == "mnist5k_mlp"


@pytest.mark.parametrize("name", ["fashion_mnist", "mnist5k_cnn"])
def test_runs_of_another_task_or_model_than_their_folder_says_are_refused(tmp_path, name):
    tried(tmp_path, "algo=qsgd")
    scored(tmp_path, "algo=qsgd")
    renamed(tmp_path, name)
    said = f"qsgd_0 is of task=mnist5k model=mlp: move it out of map_{name}_w4"
    with pytest.raises(UserError, match=said):
        extracted(tmp_path)


def test_a_folder_of_other_workers_than_its_name_says_is_refused(tmp_path):
    tried(tmp_path, "algo=qsgd")
    scored(tmp_path, "algo=qsgd")
    for name in ("map_mnist5k_w{}", "map_mnist5k_trials/w{}"):
        (tmp_path / name.format(4)).rename(tmp_path / name.format(8))
    with pytest.raises(UserError, match=r"qsgd_0 is of workers=4: move it out of map_mnist5k_w8"):
        extracted(tmp_path)


@pytest.mark.parametrize(
    "word",
    ["workers=8", "max_steps=60", "eval_every=5", "batch_size=16", "model.hidden=[9]", "model=cnn"],
)
def test_a_folder_of_unlike_runs_is_refused(tmp_path, word):
    """Of which each is as its own trial."""
    for algo, more in (("qsgd", ()), ("sgp", (word,))):
        record(tmp_path / "map_mnist5k_trials/w4", f"algo={algo}", 1000, CURVES[0], more=more)
        for seed in (0, 1):
            record(tmp_path / "map_mnist5k_w4", f"algo={algo}", seed, CURVES[seed], more=more)
    (tmp_path / "map_mnist5k_w4/targets.yaml").write_text(yaml.safe_dump(TARGETS))
    with pytest.raises(UserError, match=r"the runs in .*map_mnist5k_w4 differ in "):
        extracted(tmp_path)


def test_a_folder_of_targets_alone_is_refused(tmp_path):
    tried(tmp_path, "algo=qsgd")
    scored(tmp_path, "algo=qsgd", seeds=())
    with pytest.raises(UserError, match="map_mnist5k_w4 has no runs: run the part that scores"):
        extracted(tmp_path)


def test_runs_without_targets_are_not_left_out_silently(tmp_path):
    tried(tmp_path, "algo=qsgd")
    scored(tmp_path, "algo=qsgd")
    (tmp_path / "map_mnist5k_w4/targets.yaml").unlink()
    with pytest.raises(UserError, match=r"map_mnist5k_w4 has no targets\.yaml: copy there"):
        extracted(tmp_path)


def test_runs_whose_trials_have_no_targets_are_refused(tmp_path):
    tried(tmp_path, "algo=qsgd")
    scored(tmp_path, "algo=qsgd")
    (tmp_path / "map_mnist5k_baseline").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="has no map_mnist5k_baseline/w4: run the part `baseline`"):
        extracted(tmp_path)


def test_targets_of_trials_are_of_one_setting(tmp_path):
    tried(tmp_path, "algo=qsgd")
    scored(tmp_path, "algo=qsgd")
    record(tmp_path / "map_mnist5k_baseline/w4", "algo=sgp", 1000, CURVES[0])
    with pytest.raises(UserError, match="baseline/w4 has runs of 2 settings, and one sets the tar"):
        extracted(tmp_path)
