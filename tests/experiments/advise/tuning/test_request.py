"""What the command line of a search asks for, and what it refuses."""

import math
import shlex

import pytest

from experiments.advise.tuning.ranges import Range, read_ranges
from experiments.advise.tuning.request import has_field, read_request
from experiments.plan.compose import compose_config
from experiments.plan.messages import choices
from host.errors import UserError
from tests.experiments.tasks.own.made import pictures


def test_a_search_may_choose_what_the_defaults_do_not_fit(tmp_path):
    ranges = tmp_path / "own.yaml"
    ranges.write_text("model: {choices: [resnet18, resnet50]}\n")
    task = ["task=image_folder", f"task.root={pictures(tmp_path / 'pictures')}", "task.size=32"]
    words = ["algo=allreduce", *task, "+model.num_classes=2", "backend=sim", "workers=2"]
    with pytest.raises(UserError, match="model=cnn does not take examples of task=image_folder"):
        read_request([*words, "batch_size=2"])
    assert "model" in read_request([*words, "batch_size=2", f"ranges={ranges}"]).fields


WORDS = ("algo=bytegrad", "model=mlp", "backend=sim", "workers=2", "max_steps=4")


def refusal(*words: str) -> str:
    with pytest.raises(UserError) as caught:
        read_request([*WORDS, *words])
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trials=0"], "trials must be a whole number of at least 1, got 0"),
        (["trials=inf"], "trials must be a whole number of at least 1, got inf"),
        (["trials=nan"], "trials must be a whole number of at least 1, got nan"),
        (["seed=4294967296"], "seed must be at least 0 and at most 4294967295, got 4294967296"),
        (["trials=many"], "trials must be a number, got many"),
        (["objective=speed"], "there is no objective 'speed': choose objective=steps_per_s"),
        (["objective=steps_per_s,time_to_accuracy,bytes_to_accuracy"], "one objective or two"),
        (["objective=accuracy_at"], "needs a time: at_s=SECONDS"),
        (["objective=accuracy_at", "at_s=-1"], "at_s must be more than 0 and finite, got -1"),
        (["at_s=3"], "at_s goes with objective=accuracy_at: leave it out"),
        (["ranges=nothing"], "there are no ranges 'nothing': choose ranges=algo, engine, optim"),
        (["workers=2,4"], "workers=2,4 has several values"),
        (["algo=nothing"], "there is no algo named 'nothing'"),
        (["workers=0"], "workers must be at least 1"),
        (["checkpoint_every=2"], "trials have no checkpoints"),
        (
            ["ranges=engine", "bucket_bytes=9", "cluster.threads_per_worker=1"],
            "nothing is left to search: none of the fields in ranges=engine",
        ),
    ],
)
def test_what_cannot_be_searched_is_refused_by_a_sentence(words, sentence):
    assert sentence in refusal(*words)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lr_scale: {low: 1, high: 1" + 400 * "0" + "}", "low and high must be below 1e308"),
        ("lr_scale: {low: 2, high: 1}", "low must be less than high, got 2 and 1"),
        ("lr_scale: {low: 0, high: 1, log: true}", "must be above 0, got low: 0"),
        ("lr_scale: {low: 1, hihg: 2}", "there is no 'hihg'"),
        ("lr_scale: {low: 1}", "low and high must be numbers, got 1 and None"),
        (
            "lr_scale: {low: 1.0, high: 10.0, log: 'false'}",
            "log must be true or false, got 'false'",
        ),
        ("lr_scale: {low: 1.0, high: 10.0, log: 1}", "log must be true or false, got 1"),
        ("lr_scale: {choices: [1, true]}", "no two choices may be equal"),
        ("lr_scale: {choices: [8, 8.0]}", "no two choices may be equal"),
        ("lr_scale: {choices: [.nan, 1.0]}", "and none NaN: [nan, 1.0]"),
        ("lr_scale: {choices: [1]}", "choices must be a list of two or more"),
        (
            "lr_scale: {choices: [1e-4, 1e-3]}",
            "1e-4 is text to YAML: write a number as",
        ),
        ("lr_scale: {choices: [[1], 2]}", "choices must be numbers, words"),
        ("lr_scale: 3", "write {low: ..., high: ...}"),
        ("", "has no ranges"),
        ("a: [", "is no YAML"),
    ],
)
def test_a_file_that_has_no_ranges_is_refused(text, sentence, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    assert sentence in refusal(f"ranges={file}")


def test_fields_are_those_that_the_configuration_has_and_the_command_line_leaves():
    request = read_request([*WORDS, "objective=time_to_accuracy", "optim.momentum=0.5"])
    own = set(request.fields)
    assert {"algo.compressor", "algo.compressor.bits", "lr_scale", "bucket_bytes"} <= own
    assert own.isdisjoint({"optim.momentum", "algo.interval", "algo.topology"})
    assert request.defaults["algo.compressor"] == "minmax_uint8"
    assert request.defaults["schedule"] == "constant"
    assert "algo.compressor.bits" not in request.defaults, "minmax_uint8 has none"
    assert all(request.fields[name].contains(v) for name, v in request.defaults.items())
    assert "optim.momentum" in read_request([*WORDS, "objective=time_to_accuracy"]).fields


def test_speed_alone_searches_no_optimizer():
    assert "lr_scale" not in read_request(WORDS).fields
    assert "lr_scale" in read_request([*WORDS, "ranges=optim"]).fields


ALGOS = ("allreduce", "async", "choco_sgd", "power_sgd", "sgp", "slowmo", "top_k")


def test_every_field_of_conf_tune_is_of_some_configuration():
    """A misspelt one would be left out of every search."""
    fields = {name for group in choices("tune") for name in read_ranges(group)}
    configs = [compose_config([f"algo={algo}"]) for algo in ALGOS]
    configs += [
        compose_config(["algo=bytegrad", f"algo.compressor={compressor}"])
        for compressor in ("qsgd", "cast", "largest")
    ]
    assert fields == {name for name in fields if any(has_field(own, name) for own in configs)}


def test_files_come_first_and_the_command_has_neither_the_seed_nor_the_end_of_trials():
    request = read_request([*WORDS, "objective=time_to_accuracy", "trials=3", "net=wan"])
    values = {"algo.compressor.bits": 4, "algo.compressor": "qsgd", "algo.error_feedback": True}
    words = shlex.split(request.command_of(values))
    assert words.index("algo.compressor=qsgd") < words.index("algo.compressor.bits=4")
    assert "algo.error_feedback=true" in words and "net=wan" in words
    assert not [word for word in words if word.startswith(("seed", "stop_at", "trials"))]
    given = read_request([*WORDS, "seed=1000", "stop_at_target=true"]).command_of(values)
    assert {"seed=1000", "stop_at_target=true"} <= set(shlex.split(given))
    trial = request.config(values)
    assert (trial.seed, trial.stop_at_target, trial.algo.compressor.bits) == (1000, True, 4)
    assert "trials=3" not in request.command and "objective=time_to_accuracy" in request.command


def test_one_search_is_one_folder_whatever_the_number_of_trials():
    def folder(*words):
        return read_request(["algo=allreduce", "ranges=engine", *words]).folder

    assert folder("trials=3") == folder("trials=30") != folder("net=wan")


def test_whole_numbers_below_0_are_drawn_as_often_as_others():
    quantiles = [place / 14 for place in range(14)]
    drawn = [Range(low=-3, high=3).at(quantile) for quantile in quantiles]
    assert drawn == [number for number in range(-3, 4) for _ in range(2)]


def test_what_a_range_contains():
    assert Range(low=1, high=8).contains(8) and not Range(low=1, high=8).contains(1.5)
    assert Range(low=0.1, high=8.0).contains(8) and not Range(low=0.1, high=8.0).contains(True)
    assert Range(choices=(0, True, None)).contains(None)
    assert not Range(choices=(0, 1)).contains(True)
    assert Range(choices=(1, 3)).contains(1.0) and not Range(choices=(1, 3)).contains(3.5)
    assert Range(low=1, high=8).contains(8.0) and not Range(low=1, high=8).contains(math.inf)


@pytest.mark.parametrize("own", ["{choices: [1, 3, 10]}", "{low: 1, high: 8}"])
def test_defaults_are_written_as_the_ranges_write_them(own, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text(f"lr_scale: {own}\n")
    request = read_request([*WORDS, f"ranges={file}"])
    assert repr(request.defaults) == "{'lr_scale': 1}"
    assert request.fields["lr_scale"].contains(request.defaults["lr_scale"])
