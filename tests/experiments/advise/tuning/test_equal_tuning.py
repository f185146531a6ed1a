"""Tuning of all contestants alike: its trials, what is chosen, and that nothing of it scores."""

import json
import math
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from experiments.advise.tuning import draws
from experiments.advise.tuning.draws import Contestant, draw, load_settings, read_contestants
from experiments.advise.tuning.finals import best_in_finals, finalists
from experiments.advise.tuning.ranges import Range
from experiments.advise.tuning.trials import (
    Trial,
    at_edge,
    best_final,
    best_of,
    by_whom,
    chosen,
    final_targets,
    load_scored,
    load_trials,
)
from experiments.advise.tuning.trials_table import page
from experiments.commands.equal_tuning import main
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.overrides import values_of
from experiments.runs.actions import Command
from experiments.runs.parts import load_parts
from experiments.tasks.base import Split, TaskData
from experiments.training.metrics import MetricsRow
from host import conf
from host.errors import UserError

STUDIES = ("reference", "partitions", "map")
RESULTS = Path(__file__).parents[4] / "results"
TRIALS = {
    "reference/fashion_mnist": "reference_fashion reference_fashion_optimizers",
    "reference/movie_snippets": "reference_movies",
    "partitions": "partitions",
    "partitions/batch_norm": "batch_norm",
    "map/fashion_mnist": "map_sgd map_sgd_optimizers",
    "map/fashion_mnist_cnn": "map_cnn map_cnn_optimizers",
    "map/movie_states": "map_minilm",
}
"""Folders of `RESULTS`, and whose trials they have: files of conf/contestants."""


def runs_in(study: str, part: str) -> list[tuple[str, ...]]:
    """The words of each command of a part of a committed study that runs settings."""
    (own,) = (one for one in load_parts(study) if one.name == part)
    commands = [action.arguments for action in own.actions if isinstance(action, Command)]
    return [words[2:] for words in commands if words[:2] == ("experiments.equal_tuning", "run")]


def seeds_of(commands: list[tuple[str, ...]]) -> set[str]:
    found = [words[words.index("--seeds") + 1].split(",") for words in commands]
    return {seed for seeds in found for seed in seeds}


def tuning(study: str) -> list[tuple[str, ...]]:
    """The words of all that runs settings before the part that scores."""
    names = [part.name for part in load_parts(study)]
    return [words for name in names[: names.index("score")] for words in runs_in(study, name)]


@pytest.mark.parametrize("study", STUDIES)
def test_a_committed_study_scores_by_other_seeds_than_it_tunes(study):
    scoring = seeds_of(runs_in(study, "score"))
    assert len(scoring) >= 10
    assert seeds_of(tuning(study))
    assert not seeds_of(tuning(study)) & scoring


def made_up() -> TaskData:
    """Every example is a number of its own."""
    places = np.split(np.arange(70_000), [55_000, 60_000])
    return TaskData(*(Split(own[:, None], own % 2) for own in places))


@pytest.fixture(scope="module")
def examples_of() -> Iterator[Callable[[tuple[str, ...]], list[set[int]]]]:
    """Those that training, validation and test of a command's runs take out of the task's."""

    @cache
    def of_words(given: tuple[str, ...]) -> list[set[int]]:
        try:
            plan = make_plan(compose_config([*given, "algo=allreduce"]), Path())
        except UserError as error:
            if "is not installed" in str(error):
                pytest.skip(str(error))  # MiniLM's weights are no part of the environment
            raise
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(type(plan.task), "load", lambda task: made_up())
            data = plan.load_data()
        return [set(part.x[:, 0].tolist()) for part in (data.train, data.validation, data.test)]

    def is_said(word: str) -> bool:
        """Which examples there are does not depend on the number of workers."""
        return "=" in word and not word.startswith("workers=")

    yield lambda words: of_words(tuple(filter(is_said, words)))


@pytest.mark.parametrize("study", STUDIES)
def test_a_committed_study_scores_by_other_examples_than_it_tunes(study, examples_of):
    first, *others = [examples_of(words)[1:] for words in runs_in(study, "score")]
    assert all(parts == first for parts in others)
    validation, test = first
    assert len(validation) == 5_000
    assert len(test) == 10_000
    of_targets = [words for words in tuning(study) if "data.for_tuning=true" not in words]
    folders = [words[words.index("--runs") + 1].split("/")[2] for words in of_targets]
    assert all(name.endswith("_targets") for name in folders)
    for words in tuning(study):
        own = examples_of(words)
        if words in of_targets:
            assert own[1:] == first
            continue
        assert sum(map(len, own)) == len(set.union(*own)) == 55_000
        assert not set.union(*own) & (validation | test)


def test_contestants_have_equally_many_trials_and_each_field_is_spread():
    ranges = {
        "lr_scale": Range(low=0.1, high=10.0, log=True),
        "algo.interval": Range(low=1, high=8),
        "batch_size": Range(choices=(8, 32)),
    }
    settings = draw({"a": Contestant(words="algo=a", ranges=ranges)}, 8)
    values = [values_of(words.split()) for words in settings["a"]]
    assert sorted(int(own["algo.interval"]) for own in values) == list(range(1, 9))
    parts = sorted(int(np.log(float(own["lr_scale"]) / 0.1) / np.log(100) * 8) for own in values)
    assert parts == list(range(8))
    assert sorted(own["batch_size"] for own in values) == ["32"] * 4 + ["8"] * 4
    assert all(own["algo"] == "a" for own in values)


@pytest.mark.parametrize(
    "own",
    [
        Range(low=0.99, high=0.9999),
        Range(low=0.1234, high=0.1236, log=True),
        Range(low=1.0, high=1.0 + 1e-14),
    ],
)
def test_drawn_values_are_in_a_narrow_range_and_differ(own):
    drawn = draw({"a": Contestant(words="algo=a", ranges={"lr_scale": own})}, 6)["a"]
    values = [float(values_of(words.split())["lr_scale"]) for words in drawn]
    assert all(own.low <= value <= own.high for value in values)
    assert len(set(values)) == 6


def test_a_drawn_choice_is_as_it_was_written():
    ranges = {"lr_scale": Range(choices=(0.12341, 0.12342))}
    drawn = draw({"a": Contestant(words="algo=a", ranges=ranges)}, 2)["a"]
    assert sorted(drawn) == ["algo=a lr_scale=0.12341", "algo=a lr_scale=0.12342"]


@pytest.mark.parametrize(("folder", "contestants"), TRIALS.items(), ids=TRIALS)
def test_the_committed_trials_are_equally_many_for_all(folder, contestants):
    trials = load_settings(RESULTS / folder / "trials.yaml")
    known = {key for name in contestants.split() for key in read_contestants(name)}
    assert trials.keys() == known
    assert len({len(own) for own in trials.values()}) == 1


def profile(name: str) -> dict[str, Any]:
    return yaml.safe_load((RESULTS / f"reference/profiles/{name}.yaml").read_text())


@pytest.mark.parametrize("optim", ["plain_sgd", "adamw"])
def test_a_profile_by_another_optimizer_has_as_much_more_of_its_time_as_all_reduce_has(optim):
    by_optim, by_sgd = f"allreduce_{optim}_w16", "allreduce_w16"
    more_s = profile(by_optim)["optimizer_s"] - profile(by_sgd)["optimizer_s"]
    known = read_contestants("reference_fashion_optimizers")
    own = [known[name] for name in known if name.endswith(f"_{optim}")]
    assert len(own) >= 12
    for contestant in own:
        name = Path(values_of(contestant.words.split())["profile"]).stem
        expected = profile(name.replace(f"_{optim}", ""))
        expected["setting"]["optim"] = optim
        expected["optimizer_s"] = float(f"{expected['optimizer_s'] + more_s:.4g}")
        assert profile(name) == expected


def test_the_profile_of_one_worker_without_an_outer_step_is_slowmos_without_it():
    expected = profile("slowmo_w1")
    expected["setting"]["algo"] = "local_sgd"
    expected["jobs"] = [*expected["jobs"][:-1], profile("local_sgd_w16")["jobs"][-1]]
    assert profile("local_sgd_w1") == expected


def test_every_contestant_is_a_run():
    unlike = {}  # many are in several files
    for name in conf.files(draws.FOLDER):
        contestants = read_contestants(name)
        assert "allreduce" in contestants or name.endswith("_optimizers")
        unlike |= {f"{own.words} {' '.join(own.ranges)}": own for own in contestants.values()}
    for [words] in draw(unlike, 1).values():
        config = compose_config(["schedule=cosine", *words.split()])
        assert config.names.algo == values_of(words.split())["algo"]


@pytest.mark.parametrize(
    "text",
    [
        "ranges: {}",
        "{ranges: {}, contestants: {a: {words: , ranges: {}}}}",
        "{ranges: {}, contestants: {a: {words: 3, ranges: {}}}}",
    ],
)
def test_a_contestant_without_ranges_or_words_is_refused(text, tmp_path, monkeypatch):
    folder = tmp_path / "conf" / "contestants"
    folder.mkdir(parents=True)
    (folder / "none.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="does not describe contestants"):
        read_contestants("none")


@pytest.mark.parametrize("text", ["a: algo=qsgd", "a: [null]", "a: 3", "[a]", "a: [", "é"])
def test_what_is_no_list_of_settings_is_refused(text, tmp_path):
    (file := tmp_path / "trials.yaml").write_text(text, encoding="latin-1")
    with pytest.raises(UserError, match=r"trials\.yaml has no settings: "):
        load_settings(file)


def trial(
    words: str, times_s: list[float], accuracies: list[float], place: str | None = None
) -> Trial:
    name = values_of(words.split())["algo"]
    rows = [
        MetricsRow(kind="evaluation", step=step, time_s=time_s, accuracy=accuracy)
        for step, (time_s, accuracy) in enumerate(zip(times_s, accuracies, strict=True), 1)
    ]
    return Trial(
        contestant=name, words=words, net="wan", folder=Path(), evaluations=rows, place=place
    )


FAST = trial("algo=allreduce lr_scale=3.0", [1, 2, 3], [0.5, 0.81, 0.82])
GOOD = trial("algo=allreduce lr_scale=1.0", [1, 2, 3], [0.5, 0.7, 0.86])
SLOW = trial("algo=allreduce lr_scale=0.3", [1, 2, 3], [0.1, 0.2, 0.3])


def test_the_soonest_trial_is_chosen_and_without_any_the_most_accurate():
    trials = [SLOW, GOOD, FAST]
    assert best_of(by_whom(trials), 0.8)["allreduce", "wan"] == (FAST, trials)
    assert best_of(by_whom(trials), 0.85)["allreduce", "wan"][0] is GOOD
    assert best_of(by_whom(trials), 0.9)["allreduce", "wan"][0] is GOOD
    assert chosen(best_of(by_whom(trials), 0.85), 0.85) == {
        "allreduce": ["algo=allreduce lr_scale=1.0 net=wan target_accuracy=0.85"]
    }


def test_a_setting_that_is_chosen_for_two_places_scores_once():
    there = [replace(own, place=place) for own in (GOOD, FAST) for place in ("bytes", "delay")]
    best = best_of(by_whom([*there, replace(SLOW, place="bytes")]), 0.8)
    assert best.keys() == {("allreduce", "bytes"), ("allreduce", "delay")}
    assert chosen(best, 0.8) == {
        "allreduce": ["algo=allreduce lr_scale=3.0 net=wan target_accuracy=0.8"]
    }


def test_what_sets_the_targets_scores_too_and_once():
    best = best_of(by_whom([GOOD, FAST]), 0.8)
    fast, good = (f"{own.words} net=wan target_accuracy=0.8" for own in (FAST, GOOD))
    assert sorted(chosen(best, 0.8, [GOOD])["allreduce"]) == sorted([fast, good])
    assert chosen(best, 0.8, [FAST]) == {"allreduce": [fast]}
    other = replace(GOOD, contestant="by_adamw")
    assert chosen(best, 0.8, [other]) == {"allreduce": [fast], "by_adamw": [good]}


def test_an_algorithm_has_the_best_of_all_its_contestants():
    other = replace(SLOW, contestant="by_adamw", words="algo=allreduce optim=adamw lr_scale=9")
    other = replace(other, evaluations=FAST.evaluations)
    trials = [SLOW, GOOD, other]
    best = best_of(by_whom(trials, by_algo=True), 0.8)
    assert best == {("allreduce", "wan"): (other, trials)}
    alone = replace(other, contestant="one_worker", words="algo=allreduce workers=1 lr_scale=9")
    apart = best_of(by_whom([GOOD, alone], by_algo=True), 0.8)
    assert [whose for whose, _ in apart] == ["allreduce", "one_worker"]
    assert chosen(best, 0.8) == {"by_adamw": [f"{other.words} net=wan target_accuracy=0.8"]}
    assert at_edge(other, trials) == {}  # no other trial is drawn from its ranges
    table = page(best, 0.8)
    assert (
        "| by_adamw | wan | lr_scale=9 |" in table and "| by_adamw | lr_scale=9 | 2.00 * |" in table
    )
    assert table.count(" * |") == 1


def test_the_three_best_run_again_and_the_soonest_median_is_chosen():
    bad = trial("algo=allreduce", [1, 2], [0.4, 0.5])
    lucky = replace(FAST, words="algo=allreduce lr_scale=7.0", contestant="lucky")
    slow = replace(SLOW, words="algo=allreduce net=wan lr_scale=8.0")
    groups = by_whom([SLOW, GOOD, lucky, slow], by_algo=True)
    settings = finalists(groups, 0.8)
    assert settings == {
        "allreduce": [f"algo=allreduce lr_scale={own} net=wan" for own in (1.0, 0.3)],
        "lucky": ["algo=allreduce lr_scale=7.0 net=wan"],
    }
    again = [
        *(replace(lucky, words=f"{lucky.words} net=wan", evaluations=own.evaluations)
          for own in (FAST, bad, bad)),
        *(replace(GOOD, words=f"{GOOD.words} net=wan") for _ in range(3)),
        *(replace(SLOW, words=f"net=wan {SLOW.words}") for _ in range(3)),
    ]  # fmt: skip
    best = best_in_finals(groups, again, 0.8)
    assert best == {("allreduce", "wan"): (GOOD, [SLOW, GOOD, lucky, slow])}
    table = page(best, 0.8, "networks", again)
    assert "one seed a trial, then 3 others for the best." in table
    assert "| lucky | lr_scale=7.0 | missed | 0.5000 |" in table
    assert "| allreduce | lr_scale=1.0 | 3.00 * | 0.8600 |" in table


def test_two_files_with_a_contestant_of_one_name_are_refused(tmp_path, monkeypatch):
    words = ["draw", "map_sgd", "map_adam", "--trials=1", f"--out={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["equal_tuning", *words])
    with pytest.raises(UserError, match=r"^map_adam has allreduce, as a file before it: rename"):
        main()


def test_what_is_the_lowest_or_highest_tried_is_told():
    assert at_edge(FAST, [SLOW, GOOD, FAST]) == {"lr_scale": "highest"}
    assert at_edge(SLOW, [SLOW, GOOD, FAST]) == {"lr_scale": "lowest"}
    assert at_edge(GOOD, [SLOW, GOOD, FAST]) == {}


def test_targets_follow_from_the_most_accurate_baseline():
    other = trial("algo=qsgd lr_scale=1.0", [1], [0.99])
    assert best_final([SLOW, other, GOOD, FAST]) is GOOD
    with pytest.raises(UserError, match="no contestant has algo=allreduce: add one"):
        best_final([other])
    seeds = [trial("algo=allreduce", [1], [final]) for final in (0.80, 0.86, 0.85)]
    assert final_targets(own.final for own in seeds) == {
        2.0: 0.83,
        1.0: 0.84,
        0.5: 0.845,
        0.2: 0.848,
    }
    with pytest.raises(UserError, match=r"an accuracy of 0\.010, and a target 2 points below it"):
        final_targets([0.01])


def record(
    folder: Path, overrides: list[str], status: str = "completed", *, metric=None, time_s=2.5
) -> None:
    folder.mkdir(parents=True)
    summary = {"algo": "a", "status": status, "metric": metric}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "environment.json").write_text(json.dumps({"overrides": overrides}))
    row = {"kind": "evaluation", "step": 8, "time_s": time_s, "accuracy": 0.7}
    row |= {} if metric is None else {"score": 1.3}
    (folder / "metrics.jsonl").write_text(json.dumps(row) + "\n")


def test_trials_are_found_by_what_records_say_of_them(tmp_path):
    settings = {"a": ["algo=sgp algo.topology=ring algo.overlap=false"]}
    words = ["data.for_tuning=true", "algo=sgp", "algo.topology=ring", "algo.overlap=false"]
    record(tmp_path / "one", [*words, "net=wan", "seed=1000"])
    (found,) = load_trials(settings, tmp_path)
    assert (found.contestant, found.net, found.final, found.time_s(0.6)) == ("a", "wan", 0.7, 2.5)
    with pytest.raises(UserError, match="lacks 1 trial: run them"):
        load_trials({**settings, "b": ["algo=qsgd"]}, tmp_path)
    record(tmp_path / "failed", ["data.for_tuning=true", "algo=qsgd", "net=wan"], "failed")
    with pytest.raises(UserError, match="lacks 1 trial: run them"):
        load_trials({**settings, "b": ["algo=qsgd"]}, tmp_path)
    record(tmp_path / "two", [*words[1:], "net=wan", "seed=0"])
    with pytest.raises(UserError, match=r"is no trial: it has not data\.for_tuning=true"):
        load_trials(settings, tmp_path)


@pytest.mark.parametrize("number", ["0", "-1"])
def test_a_draw_has_trials(number, tmp_path, monkeypatch):
    words = ["draw", "reference_fashion", f"--trials={number}", f"--out={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["equal_tuning", *words])
    with pytest.raises(UserError, match=f"--trials must be at least 1, got {number}"):
        main()


TUNED = "data.for_tuning=true"


def test_a_run_is_of_the_setting_that_says_most_of_it(tmp_path):
    settings = {"plain": ["algo=qsgd"], "clipped": ["algo=qsgd clip_norm=1"]}
    record(tmp_path / "one", [TUNED, "algo=qsgd", "net=wan", "seed=0"])
    record(tmp_path / "two", [TUNED, "algo=qsgd", "clip_norm=1", "net=wan", "seed=0"])
    found = load_trials(settings, tmp_path)
    assert [(own.contestant, own.folder.name) for own in found] == [
        ("plain", "one"),
        ("clipped", "two"),
    ]
    with pytest.raises(UserError, match=r"plain and other have the same setting, 'algo=qsgd'"):
        load_trials({**settings, "other": ["algo=qsgd"]}, tmp_path)


def test_all_settings_need_a_run_on_each_network_with_each_seed(tmp_path):
    settings = {"a": ["algo=qsgd"], "b": ["algo=sgp"], "own": ["algo=slowmo net=none"]}
    with pytest.raises(UserError, match="lacks 3 trials: run them first, such as 'algo=qsgd'; a"):
        load_trials(settings, tmp_path)
    for algo, net in (("qsgd", "lan_1g"), ("qsgd", "wan"), ("sgp", "lan_1g"), ("slowmo", "none")):
        record(tmp_path / f"{algo}_{net}", [TUNED, f"algo={algo}", f"net={net}", "seed=0"])
    with pytest.raises(UserError, match="run them first, such as 'algo=sgp' on wan with seed 0; a"):
        load_trials(settings, tmp_path)
    record(tmp_path / "sgp_wan", [TUNED, "algo=sgp", "net=wan", "seed=0"])
    assert len(load_trials(settings, tmp_path)) == 5
    record(tmp_path / "seed", [TUNED, "algo=sgp", "net=wan", "seed=1"])
    with pytest.raises(UserError, match="lacks 4 trials: run them"):
        load_trials(settings, tmp_path)
    record(tmp_path / "pilot", [TUNED, "algo=sgp", "net=wan", "max_steps=2", "seed=0"])
    said = "pilot and .*sgp_wan are two runs of 'algo=sgp' on wan with seed 0: keep those"
    with pytest.raises(UserError, match=said):
        load_trials(settings, tmp_path)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("max_steps: 858", "max_steps"),
        ("task: {target_accuracy: 0.8}", r"task\.target_accuracy"),
        ("schedule: {T_max: 10}", r"schedule\.T_max"),
        ("algo: {_target_: B, interval: 4}", None),
        ("lr_scale: 3.0", None),
    ],
)
def test_trials_differ_in_what_settings_name_alone(tmp_path, option, said):
    settings = {"a": ["algo=qsgd lr_scale=1.0"], "b": ["algo=sgp lr_scale=3.0"]}
    for words, text in (("qsgd lr_scale=1.0", ""), ("sgp lr_scale=3.0", option)):
        record(tmp_path / words, [TUNED, *f"algo={words}".split(), "net=wan", "seed=0"])
        (tmp_path / words / "config.yaml").write_text(f"batch_size: 8\n{text}\n")
    if said is None:
        assert len(load_trials(settings, tmp_path)) == 2
        return
    with pytest.raises(UserError, match=rf"sgp .* differ in {said}, which no setting names"):
        load_trials(settings, tmp_path)


def test_records_that_do_not_say_what_was_run_or_where_are_refused(tmp_path):
    record(tmp_path / "run", [TUNED, "algo=qsgd", "seed=0"])
    with pytest.raises(UserError, match="run does not say its network: run it with net=NAME"):
        load_trials({"a": ["algo=qsgd"]}, tmp_path)
    for text in ('{"overr', "{}", "[]", '{"overrides": "algo=qsgd"}', '{"overrides": [1]}'):
        (tmp_path / "run/environment.json").write_text(text)
        with pytest.raises(UserError, match=r"environment\.json does not say what was run"):
            load_trials({"a": ["algo=qsgd"]}, tmp_path)


def test_trials_that_were_scored_by_another_metric_are_refused(tmp_path):
    record(tmp_path / "run", [TUNED, "algo=qsgd", "net=wan", "seed=0"], metric="loss")
    said = r"run was scored by loss, and settings are chosen by accuracy: .* give its trials target"
    with pytest.raises(UserError, match=said):
        load_trials({"a": ["algo=qsgd"]}, tmp_path)


@pytest.mark.parametrize("command", ["baseline", "choose"])
def test_trials_of_several_seeds_choose_nothing(command, tmp_path, monkeypatch):
    contestants = {"a": Contestant(words="algo=allreduce", ranges={})}
    monkeypatch.setattr(draws, "read_contestants", lambda name: contestants)
    for seed, time_s in ((1000, 9), (1001, 2)):
        words = [TUNED, "algo=allreduce", "net=wan", f"seed={seed}"]
        record(tmp_path / f"runs/{seed}", words, time_s=time_s)
    argv = ["equal_tuning", command, "x", "--trials=1", f"--runs={tmp_path / 'runs'}"]
    argv += [f"--out={tmp_path / 'out'}", *(["--baseline=b"] if command == "choose" else [])]
    monkeypatch.setattr(sys, "argv", argv)
    said = "1000 and .*1001 are trials of 'algo=allreduce' on wan, whose luckier seed would choose"
    with pytest.raises(UserError, match=said):
        main()


def test_a_trial_that_diverged_has_reached_nothing(tmp_path):
    record(tmp_path / "run", [TUNED, "algo=qsgd", "net=wan", "seed=0"], "diverged")
    (found,) = load_trials({"a": ["algo=qsgd"]}, tmp_path)
    assert (found.time_s(0.6), found.final) == (math.inf, 0)


def test_a_trial_whose_evaluations_are_gone_is_named(tmp_path):
    record(tmp_path / "run", [TUNED, "algo=qsgd", "net=wan", "seed=0"])
    (tmp_path / "run/metrics.jsonl").write_text('{"kind": "eval')
    with pytest.raises(UserError, match="run has no evaluation that can be read: delete it and"):
        load_trials({"a": ["algo=qsgd"]}, tmp_path)


def chosen_of(folder: str) -> list[Path]:
    """What was chosen of the trials of a folder: there, or one folder further down."""
    found = [*(RESULTS / folder).glob("chosen.yaml"), *(RESULTS / folder).glob("*/chosen.yaml")]
    assert found
    return sorted(found)


@pytest.mark.parametrize(
    ("folder", "file"),
    [(folder, file) for folder in TRIALS for file in chosen_of(folder)],
    ids=lambda value: str(value).removeprefix(f"{RESULTS}/"),
)
def test_the_committed_settings_are_trials_and_have_the_frozen_target(folder, file):
    """The map's have the one by which trials are chosen: its page counts steps to all targets."""
    settings = load_settings(RESULTS / folder / "trials.yaml")
    trials = {words for own in settings.values() for words in own}
    if folder.startswith("map/"):
        first, *_ = (file.parent / "trials.md").read_text().splitlines()
        target = float(first.split()[5])
    else:
        target = yaml.safe_load((file.parent / "targets.yaml").read_text())[1.0]
    best = load_settings(file)
    assert any(best.values())
    for own in best.values():
        for words in own:
            values = values_of(words.split())
            assert float(values["target_accuracy"]) == target
            drawn = [w for w in words.split() if not w.startswith(("net=", "target_accuracy="))]
            assert any(set(drawn) <= set(other.split()) for other in trials)


@pytest.mark.parametrize(
    ("archive", "packed", "committed"),
    [
        ("reference/fashion_mnist", "reference_fashion", "reference/fashion_mnist"),
        ("reference/movie_snippets", "reference_movies", "reference/movie_snippets"),
        *(
            ("map/fashion_mnist", f"map_fashion_mnist_w{workers}", f"map/fashion_mnist/w{workers}")
            for workers in (8, 32)
        ),
    ],
)
def test_the_committed_runs_were_scored_by_the_committed_targets(archive, packed, committed):
    with tarfile.open(RESULTS / archive / "runs.tar.xz") as runs:
        targets = runs.extractfile(f"{packed}/targets.yaml")
        assert targets is not None
        assert targets.read() == (RESULTS / committed / "targets.yaml").read_bytes()


def baseline_runs(runs: Path, seeds: tuple[int, ...], *words: str, config: str = "") -> Path:
    for seed in seeds:
        record(runs / str(seed), [*words, "algo=allreduce", "net=none", f"seed={seed}"])
        (runs / f"{seed}/config.yaml").write_text(f"batch_size: 8\nseed: {seed}\n{config}")
    return runs


@pytest.mark.parametrize(
    ("seeds", "words", "config", "said"),
    [
        ((1000, 1001), [], "", None),
        ((1000, 1002), [], "", r"seeds 1000 and 1002, and .*tuned of 1000 and 1001: run both with"),
        ((1000, 1001), [TUNED], "", r"1000 scores nothing: it has data\.for_tuning=true; run it"),
        ((1000, 1001), [], "max_steps: 9\n", r"1000 differ in max_steps: run both alike"),
    ],
)
def test_targets_may_be_of_the_examples_that_score(tmp_path, seeds, words, config, said):
    folder = baseline_runs(
        tmp_path / "tuned", (1000, 1001), TUNED, config="data: {for_tuning: true}"
    )
    tuned = load_trials({"a": ["algo=allreduce"]}, folder)
    folder = baseline_runs(tmp_path / "scored", seeds, *words, config=config)
    if said is None:
        assert [run.folder.parent for run in load_scored(tuned, folder)] == [folder, folder]
        return
    with pytest.raises(UserError, match=said):
        load_scored(tuned, folder)
