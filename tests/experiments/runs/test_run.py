import math

import pytest

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.runs.load import load_rows
from experiments.runs.run import Recorder, crowding, known_summary, run
from experiments.training.evaluation import NOT_EVALUATED, Evaluation
from experiments.training.result import Result
from tests import app


def summary_of(folder, validation, *overrides):
    """Of a run whose end is given here."""
    result = Result(
        steps=10,
        time_s=2.0,
        bytes_sent=None,
        exposed_communication_s=0.0,
        validation=validation,
        test=Evaluation(0.5, 3 * math.log(2), 0.25),
    )

    def start(plan, data, on_network, on_row):
        on_network(None)
        return [result]

    plan = make_plan(compose_config(["algo=allreduce", *overrides]), folder)
    data = plan.task.load()
    assert Recorder(plan, {}, (), start, known_summary(plan, data)).run(data) == "completed"
    return app.summary(folder)


@pytest.mark.parametrize(
    ("words", "bits"),
    [(("task=jane_austen", "model=char_transformer"), pytest.approx(3)), (("task=mnist5k",), None)],
)
def test_losses_are_in_nats_and_a_texts_in_bits_a_character_too(words, bits, tmp_path):
    summary = summary_of(tmp_path / "run", Evaluation(0.75, 1.5, 0.0), *words)
    assert (summary["validation_accuracy"], summary["validation_loss"]) == (0.75, 1.5)
    assert (summary["final_accuracy"], summary["spread"]) == (0.5, 0.25)
    assert summary["final_loss"] == 3 * math.log(2)
    assert summary["final_bits_per_character"] == bits


def test_what_was_not_evaluated_is_null(tmp_path):
    summary = summary_of(tmp_path / "run", NOT_EVALUATED)
    assert (summary["validation_accuracy"], summary["validation_loss"]) == (None, None)


def test_a_loss_that_is_not_finite_at_a_stop_is_seen_whatever_is_logged(tmp_path):
    words = ["algo=allreduce", "backend=sim", "net=none", "model=mlp", "workers=2", "lr_scale=1e30"]
    words += ["max_steps=8", "eval_every=4", "log_every=1000"]
    assert run(compose_config(words), tmp_path) == "diverged"
    assert [(row.kind, row.step) for row in load_rows(tmp_path)] == [("step", 1)]
    assert app.summary(tmp_path)["reason"] == "the loss is nan at step 4"


@pytest.mark.parametrize(
    ("algorithm", "backend"), [("allreduce", "sim"), ("local_sgd", "sim"), ("async", "gloo")]
)
def test_a_model_of_nan_reaches_no_target(algorithm, backend, tmp_path):
    """One of ten classes is right, by chance; the loss before the last step was finite."""
    words = [f"algo={algorithm}", f"backend={backend}", "net=none", "model=mlp", "workers=2"]
    words += ["lr_scale=1e38", "max_steps=1", "eval_every=1", "target_accuracy=0.05"]
    assert run(compose_config([*words, "stop_at_target=true"]), tmp_path) == "diverged"
    assert [(row.kind, row.step) for row in load_rows(tmp_path)] == [("step", 1)]
    summary = app.summary(tmp_path)
    assert summary["reason"] == "the loss on the validation set is nan after step 1"
    assert summary["time_to_accuracy_s"] is None and summary["final_accuracy"] is None


@pytest.mark.parametrize(
    "words",
    [
        ("algo=async", "backend=sim", "cluster.straggler=2.0"),
        ("algo=async", "backend=gloo"),
        ("algo=local_sgd", "backend=sim", "cluster.straggler=2.0"),
    ],
    ids=["simulated", "real", "all_wait"],
)
def test_evaluations_of_workers_that_wait_for_nobody_say_how_many_steps_the_mean_one_has_done(
    words, tmp_path
):
    size = ["net=none", "model=mlp", "workers=3", "max_steps=12", "eval_every=4", "algo.interval"]
    size[-1] += "=4" if "algo=local_sgd" in words else "_ms=0"
    assert run(compose_config([*words, *size]), tmp_path) == "completed"
    rows = [row for row in load_rows(tmp_path) if row.is_evaluation]
    assert [row.step for row in rows] == [4, 8, 12]
    if "algo=local_sgd" in words:
        assert [row.mean_step for row in rows] == [None] * 3
    elif "backend=sim" in words:  # the last one takes three times as long as the two others
        assert [row.mean_step for row in rows] == pytest.approx([(4 + 12 + 12) / 3, 32 / 3, 12])
    else:
        assert all(row.step <= row.mean_step <= 12 for row in rows)


@pytest.mark.parametrize(
    ("words", "is_told"),
    [
        (["workers=9"], True),
        (["workers=8"], False),
        (["workers=9", "backend=sim"], False),
    ],
)
def test_many_real_workers_on_few_cores_are_told_of(words, is_told, tmp_path):
    plan = make_plan(compose_config(["algo=allreduce", "model=mlp", *words]), tmp_path)
    remark = crowding(plan, cores=2)
    assert (remark is not None and "9 workers share 2 cores" in remark) == is_told


def test_a_launcher_without_a_sweep_is_told_of():
    done = app.run("algo=allreduce", "workers=0", "hydra/launcher=ray")
    assert done.returncode == 2
    assert "hydra/launcher counts with -m alone" in done.stderr
