"""The benches of loading, cache and optimizer, on parts that take no time."""

import math
from pathlib import Path

import pytest

from bagua_algos.data import CachedDataset, DiskStore
from experiments.commands.benches import bench_systems
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.tasks.samplers import Balanced, Shuffled
from experiments.validation import (
    bench_autotune,
    bench_balanced,
    bench_cache,
    bench_optimizer,
)
from host.errors import UserError


def test_the_cases_of_balanced_loading_are_what_they_are_called():
    made = {
        case: make_plan(compose_config(["algo=allreduce", *words]), Path()).loading.sampler
        for case, words in bench_balanced.CASES.items()
    }
    assert list(made.values()) == [Shuffled(), Shuffled(crop=True), Balanced()]


def test_ratios_are_of_one_round():
    def run(ms: float, reached_s: float) -> dict[str, float]:
        return {"ms a step": ms, "s to accuracy": reached_s}

    measured = {
        bench_balanced.WHOLE: [run(30, 9), run(60, math.inf)],
        bench_balanced.CUT: [run(20, 4), run(10, 4)],
        bench_balanced.BALANCED: [run(10, 2), run(5, 8)],
    }
    rows = bench_balanced.rows(measured)
    assert rows["ms a step, balanced"] == [10, 5]
    assert rows["ms a step, shuffled, cut / balanced, round by round"] == [2, 2]
    assert rows["s to accuracy, shuffled / balanced, round by round"] == [4.5, math.inf]


@pytest.mark.parametrize("model", bench_autotune.MODELS)
def test_every_case_of_autotuning_is_a_run(model):
    words = ["algo=allreduce", *bench_autotune.MODELS[model]]
    cases = bench_autotune.cases(is_short=True)
    plans = {
        case: make_plan(compose_config([*words, *own]), Path("unused"))
        for case, own in cases.items()
    }
    assert [plan.autotune for plan in plans.values()] == [case == "tuned" for case in cases]
    assert plans["tuned"].max_steps > plans["defaults"].max_steps + bench_autotune.MOST_STEPS


def test_tuned_is_compared_with_the_best_of_the_grid():
    def runs(*ms: float) -> list[dict[str, float]]:
        return [{"ms": own, "steps": 200, "fixed": 1} for own in ms]

    measured = {
        ("cnn", "wan"): {
            "defaults": runs(30, 40),
            "tuned": runs(10, 20),
            "slow": runs(90, 90),
            "fast": runs(10, 10),
        }
    }
    rows = bench_autotune.rows(measured)
    assert rows["cnn, wan: defaults / tuned"] == [3, 2]
    assert rows["cnn, wan: best of the grid / tuned"] == [1, 0.5]
    assert rows["cnn, wan: ms a step, best of the grid: fast"] == [10, 10]


def test_four_processes_read_all_epochs_from_one_store(monkeypatch, tmp_path):
    monkeypatch.setattr(bench_cache, "NUM_EXAMPLES", 40)
    store = DiskStore(folder=tmp_path)
    first_s, *later_s = bench_cache.epochs_s(store, "test")
    assert first_s > 10 * bench_cache.EXAMPLE_S and len(later_s) == 2
    cached = CachedDataset(bench_cache.Slow(), store, fingerprint="test")
    assert [cached[i][1] for i in range(40)] == list(range(40)) and cached.num_computed == 0
    monkeypatch.setattr(bench_cache, "BYTES_OF_ENTRIES", 1)
    assert min(bench_cache.entry_us(store, 1_000)) > 0
    store.close()


def test_every_way_to_step_is_timed(monkeypatch):
    monkeypatch.setattr(bench_optimizer, "NUM_PARAMETERS", 4)
    monkeypatch.setattr(bench_optimizer, "NUM_STEPS", 4)
    ways = {name: set(bench_optimizer.measure(name, 3)) for name in bench_optimizer.OPTIMIZERS}
    always = {"loop", "foreach=True", "ours", "ours, in buckets"}
    assert ways["RMSprop"] == ways["NAdam"] == always
    assert ways["AdamW"] == ways["SGD momentum"] == {*always, "fused=True"}


@pytest.mark.parametrize(
    "words", [["nothing"], ["cache", "--repeats", "0"], ["cache", "--models", "nothing"]]
)
def test_what_cannot_be_measured_is_refused(words, monkeypatch):
    monkeypatch.setattr("sys.argv", ["bench_systems", *words])
    with pytest.raises(UserError, match=r"nothing|--repeats"):
        bench_systems.main()


def test_one_workers_steps_are_timed_by_how_its_batches_are_padded():
    words = ["task=mnist5k", "model=mlp", "model.hidden=[8]", "batch_size=4", "optim.lr=0.01"]
    with bench_balanced.steppers(words) as steppers:
        took_ms = {case: [take(number) for number in range(3)] for case, take in steppers.items()}
    assert all(ms > 0 for own in took_ms.values() for ms in own)
    rows = bench_balanced.length_rows({**took_ms, bench_balanced.BALANCED: [2.0, 4.0]})
    assert rows["ms a step, balanced"] == [2, 4]
    shuffled = took_ms[bench_balanced.WHOLE]
    assert rows["mean, shuffled / balanced"] == [pytest.approx(sum(shuffled) / 3 / 3)]


def test_steps_that_no_row_of_metrics_ends_are_refused(monkeypatch):
    monkeypatch.setattr("sys.argv", ["bench_systems", "autotune", "--steps", "15"])
    with pytest.raises(UserError, match="multiple of 10, got 15"):
        bench_systems.main()
