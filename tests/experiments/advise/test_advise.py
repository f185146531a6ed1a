import math
import tempfile
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from experiments.advise import candidates
from experiments.advise.advice import Advice
from experiments.advise.advise import slowest_rate_mbit
from experiments.advise.candidates import gather
from experiments.advise.choice import choose
from experiments.advise.rank import Prediction, predictions_tie, ranked, tie_rule, ties
from experiments.advise.verify import check_launchable
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.report.statistics import RATE_CLASSES_MBIT, prediction_error
from experiments.simulated.outcome import (
    SimulatedOutcome,
    outcome_on,
    outcome_there,
    record_training,
)
from experiments.simulated.rehearsal import rehearse
from experiments.simulated.replay import RecordedTraining
from experiments.simulated.simulate import train_simulated
from experiments.tasks.target import Target
from experiments.training.metrics import MetricsRow
from host.errors import UserError
from netsim.conditions.condition import NetworkCondition
from tests import app

MODEL_ERROR = 0.06
TARGET = Target(value=0.9)
SMALL = ("task=mnist5k", "model=mlp", "workers=2", "max_steps=10", "eval_every=5")


def outcome(time_s, *, score=0.95, num_steps=10):
    """A run that takes `time_s` to the target, or misses it if that is inf."""
    return SimulatedOutcome(
        has_reached=math.isfinite(time_s),
        reached_s=time_s,
        score=score,
        num_steps=num_steps,
        time_s=time_s if math.isfinite(time_s) else 99.0,
        bytes_sent=2e6,
        exposed_communication_s=0.0,
    )


def prediction(algo, *times_s, score=0.95):
    outcomes = [outcome(time_s, score=score) for time_s in times_s]
    return Prediction(algo=algo, outcomes=outcomes)


def advice(*predictions, measured_s=None, target=TARGET):
    return Advice(
        situation="a task, a network",
        target=target,
        predictions=ranked(predictions, target),
        model_error=MODEL_ERROR,
        measured_s=measured_s or {},
    )


def plan_of(folder, *overrides):
    config = compose_config(
        [*SMALL, "backend=sim", "cluster.stacking=vmap", "stop_at_target=true", *overrides]
    )
    return make_plan(config, folder)


def advise(*arguments):
    return app.run(*arguments, module="experiments.advise.__main__")


def test_the_fastest_is_first_and_misses_are_last_the_most_accurate_before_others():
    order = ranked(
        [
            prediction("bad", math.inf, math.inf, math.inf, score=0.5),
            prediction("near", math.inf, math.inf, 1.0, score=0.89),
            prediction("slow", 3.0, 4.0, math.inf),
            prediction("fast", 2.0, 1.0, 3.0),
        ],
        TARGET,
    )
    assert [p.algo for p in order] == ["fast", "slow", "near", "bad"]
    assert [p.time_s for p in order] == [2.0, 4.0, math.inf, math.inf]


def is_tie(times_s, others_s):
    both = [prediction("a", *times_s), prediction("b", *others_s)]
    return predictions_tie(*both, MODEL_ERROR)


def test_times_tie_where_seeds_disagree_about_who_is_first():
    assert is_tie([1.0, 2.0, 3.0], [2.0, 1.0, 3.0])
    assert not is_tie([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
    assert is_tie([1.0, 2.0, math.inf], [2.0, 4.0, 6.0])  # one seed misses, so it may be slower


def test_times_that_differ_by_less_than_the_simulators_error_tie():
    less, more = 1 + 0.9 * MODEL_ERROR, 1 + 1.1 * MODEL_ERROR
    assert is_tie([1.0, 1.0, 1.0], [less] * 3)
    assert not is_tie([1.0, 1.0, 1.0], [more] * 3)
    assert not is_tie([more], [1.0])


def test_the_rule_names_the_error_of_each_class_of_networks():
    slow, fast, unlimited = (f"{100 * prediction_error(rate):.0f} %" for rate in RATE_CLASSES_MBIT)
    said = f"{slow} up to 200 Mbit/s, {fast} up to 1000 Mbit/s, {unlimited} on faster or unlimited"
    assert tie_rule().endswith(f"{said} ones.")


@pytest.mark.parametrize(
    ("condition", "rate_mbit"),
    [
        (NetworkCondition(), None),
        (NetworkCondition(rate_mbit=1000), 1000),
        (NetworkCondition(rate_mbit=100, workers={0: {"rate_mbit": 10}}), 10),
        (NetworkCondition(rate_mbit=1000, down={"rate_mbit": 50}), 50),
        (NetworkCondition(rate_mbit=1000, nodes={"size": 2, "between": {"rate_mbit": 100}}), 100),
        (NetworkCondition(rate_mbit=5, schedule=[{"at_s": 60, "rate_mbit": 10}]), 10),
    ],
)
def test_the_error_of_a_network_is_by_its_slowest_link(condition, rate_mbit):
    assert slowest_rate_mbit(condition, 4) == rate_mbit


def test_a_miss_ties_with_no_time():
    assert not is_tie([math.inf] * 3, [5.0] * 3)
    shown = ranked([prediction("a", 1.0), prediction("b", math.inf), prediction("c", 1.01)], TARGET)
    assert [ties(shown, i, MODEL_ERROR) for i in range(3)] == [[1], [0], []]


def test_the_finding_says_how_much_sooner_and_who_ties():
    said = advice(
        prediction("allreduce", 4.0), prediction("x", 2.0), prediction("y", 2.1)
    ).finding()
    assert said == (
        "Simulated: x reaches 0.9 first, in 2 s, 2 times sooner than allreduce: "
        "10 steps of 200 ms instead of 10 of 400; it ties with y."
    )


def test_a_target_that_nobody_reaches_is_a_finding():
    said = advice(prediction("x", math.inf, score=0.81)).finding()
    assert said.startswith(
        "Simulated: no algorithm reaches 0.9 in the median run; the nearest is x"
    )


def test_trainings_that_diverged_are_called_so():
    lost = replace(outcome(math.inf, score=math.nan), has_diverged=True)
    mixed = Prediction(algo="y", outcomes=[outcome(1.0), outcome(math.inf, score=0.8), lost])
    all_lost = Prediction(algo="x", outcomes=[lost] * 3)
    said = advice(all_lost, target=TARGET)
    assert said.finding().endswith("since trainings diverged: lower lr_scale.")
    assert "| missed (3/3), diverged (3/3) |" in said.markdown()
    assert "| missed (2/3), diverged (1/3) |" in advice(mixed, all_lost).markdown()


def recorded_as_diverged(*steps):
    """A training that diverged after evaluations at these steps, of 1 s and 1 MB each."""
    rows = [
        MetricsRow(kind="evaluation", step=step, time_s=step, bytes_sent=10**6 * step, accuracy=0.1)
        for step in steps
    ]
    return RecordedTraining(rows=rows, script=[], result=None)


def test_nobody_knows_the_clocks_of_a_training_that_diverged_on_another_network():
    plan = SimpleNamespace(target=TARGET)
    lost = outcome_on(plan, None, recorded_as_diverged(5, 20))
    assert (lost.num_steps, lost.score, lost.has_diverged) == (20, 0.1, True)
    unknown = (lost.time_s, lost.bytes_sent, lost.step_s, lost.exposed_share)
    assert all(map(math.isnan, unknown)) and math.isinf(lost.time_to_accuracy_s)
    there = outcome_there(plan, recorded_as_diverged(5, 20))
    assert (there.step_s, there.bytes_sent, there.has_diverged) == (1.0, 2e7, True)
    at_once = outcome_there(plan, recorded_as_diverged())
    assert math.isnan(at_once.bytes_sent) and math.isnan(at_once.step_s)


def test_medians_are_of_the_trainings_whose_clocks_are_known():
    lost = outcome_on(SimpleNamespace(target=TARGET), None, recorded_as_diverged(5, 20))
    slow = replace(outcome(1.2, num_steps=40), bytes_sent=4e7, exposed_communication_s=0.12)
    slower = replace(outcome(2.4, num_steps=40), bytes_sent=8e7, exposed_communication_s=0.48)
    page = advice(
        Prediction(algo="x", outcomes=[slow, slower, lost]),
        Prediction(algo="y", outcomes=[lost] * 3),
    ).markdown()
    x, y = (
        [cell.strip() for cell in line.split("|")[4:8]]
        for line in page.splitlines()
        if line.startswith(("| 1 |", "| - |"))
    )
    assert x == ["40", "45", "60.0", "15%"]
    assert y == ["20", "-", "-", "-"]


def test_real_workers_are_refused_before_their_gpus_are_missed():
    for words in (["backend=nccl"], ["backend=gloo"], ["algo=qadam", "optim=adam", "backend=nccl"]):
        with pytest.raises(UserError, match=r"^times are predicted by simulation: leave out"):
            choose(words)


def test_the_nearest_to_a_target_of_loss_has_the_lowest():
    missed = [prediction(algo, math.inf, score=loss) for algo, loss in (("x", 3.5), ("y", 3.3))]
    diverged = prediction("z", math.inf, score=math.nan)
    said = advice(diverged, *missed, target=Target(metric="loss", value=3.2))
    assert [p.algo for p in said.predictions] == ["y", "x", "z"]
    assert said.finding().endswith(
        "reaches 3.2 in the median run; the nearest is y with 3.300: raise max_steps or "
        "raise target.loss."
    )
    assert said.title == "a task, a network, target loss 3.2: simulated, 1 seed"


@pytest.mark.parametrize(
    ("measured_s", "verdict"),
    [
        ({"x": [1.0], "y": [2.0]}, "1 came in the predicted order, and 0 had been called ties"),
        ({"x": [2.0], "y": [1.0]}, "the advice failed (x before y was predicted)"),
        ({"x": [math.inf], "y": [1.0]}, "the advice failed (x before y was predicted)"),
        ({"y": [9.0], "z": [1.0]}, "0 came in the predicted order, and 1 had been called ties"),
        ({"x": [1.0], "y": [9.0], "z": [2.0]}, "of 3 pairs of the first 3, 2 came in"),
        ({"y": [9.0], "z": [1.0]}, "the advice held"),
        (
            {"x": [math.inf], "y": [math.inf]},
            "of 1 pair of the first 2, in 1 both missed the target: nothing is known of the advice",
        ),
        (
            {"x": [1.0], "y": [math.inf], "z": [math.inf]},
            "of 3 pairs of the first 3, in 1 both missed the target, 2 came in the predicted "
            "order, and 0 had been called ties: the advice held",
        ),
    ],
)
def test_the_verdict_holds_the_order_against_real_runs(measured_s, verdict):
    three = [prediction("x", 1.0), prediction("y", 2.0), prediction("z", 2.05)]
    assert verdict in advice(*three, measured_s=measured_s).verdict()


def test_a_table_shows_ranks_intervals_misses_and_ties():
    page = advice(
        prediction("x", 1.0, 1.5, 2.0),
        prediction("y", 1.5, 1.5, 1.5),
        prediction("z", *[math.inf] * 3, score=0.88),
    ).markdown()
    cells = [
        [c.strip() for c in line.split("|")[1:-1]] for line in page.splitlines() if "|" in line
    ]
    assert cells[2][:3] == ["1", "x", "1.5 (0.607 to 3.43)"]
    assert (cells[2][-1], cells[3][-1], cells[4][-1]) == ("2", "1", "")
    assert cells[4][:3] == ["-", "z", "missed (3/3), best 0.880"]
    assert "simulated, 3 seeds" in page


@pytest.mark.parametrize("algo", ["local_sgd", "decentralized"])
def test_a_replay_is_the_simulation_on_that_network(algo, tmp_path):
    torch.set_num_threads(1)
    # Workers of different speed: an evaluation makes the fast ones wait.
    varied = (f"algo={algo}", "target_accuracy=0.5", "cluster.straggler=1")
    here = plan_of(tmp_path, *varied, "net=slow_tcp")
    there = plan_of(tmp_path, *varied, "net=wan")
    data = here.task.load()
    profile = rehearse(here, data, sharing=1, num_steps=5, seconds=0)
    training = record_training(here, data, profile)
    replayed = outcome_on(there, profile, training)
    simulated = outcome_there(there, record_training(there, data, profile))
    first = next(row for row in training.evaluations if row.accuracy >= 0.5)
    assert replayed.has_reached and replayed.num_steps == simulated.num_steps == first.step
    assert replayed.score == simulated.score
    assert replayed.time_s == pytest.approx(simulated.time_s)
    assert replayed.exposed_communication_s == pytest.approx(simulated.exposed_communication_s)
    assert replayed.bytes_sent == pytest.approx(simulated.bytes_sent, abs=1)


def test_steps_are_the_mean_workers_where_workers_wait_for_nobody(tmp_path):
    straggling = ("algo=async", "algo.interval_ms=0", "cluster.straggler=2", "max_steps=20")
    plan = plan_of(tmp_path, *straggling, "target_accuracy=0.99")
    data = plan.task.load()
    profile = rehearse(plan, data, sharing=1, num_steps=5, seconds=0)
    training = record_training(plan, data, profile)
    before = replace(training, rows=[row for row in training.rows if row.step < 20])
    first = before.evaluations[-1]
    assert outcome_there(plan, before).num_steps == first.mean_step > first.step
    assert outcome_there(plan, training).num_steps == 20  # all end after as many


def test_how_workers_are_computed_is_found_once_for_all_trainings(monkeypatch):
    (candidate,) = gather(choose([*SMALL, "algo=allreduce"]), 2).candidates
    tried = Mock(side_effect=AssertionError("was found before"))
    monkeypatch.setattr("experiments.simulated.simulate.choose_stacking", tried)
    first, second = candidate.outcomes(NetworkCondition())
    assert first.num_steps == second.num_steps == 10
    (found,) = candidate.stackings.values()
    assert found.seconds


def test_a_run_that_diverges_misses(tmp_path):
    torch.set_num_threads(1)
    plan = plan_of(tmp_path, "algo=allreduce", "lr_scale=1e30", "eval_every=1")
    data = plan.task.load()
    profile = rehearse(plan, data, sharing=1, num_steps=5, seconds=0)
    training = record_training(plan, data, profile)
    assert math.isinf(outcome_on(plan, profile, training).time_to_accuracy_s)
    assert math.isinf(outcome_there(plan, training).time_to_accuracy_s)


def test_algorithms_are_chosen_by_name_or_pattern():
    assert choose(["+algo=bytegrad,qsgd", "net=wan"]) == (["bytegrad", "qsgd"], True, ["net=wan"])
    assert choose(["algo=glob(torch*)"]).algos[0] == "torch_ddp"
    assert "async" in choose([]).algos
    assert not choose([]).are_named


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        (["algo=glob(x*)"], "matches none of"),
        (["net=wan,lossy"], "net=wan,lossy has several values: only algo"),
        (["algo="], "algo= matches none of"),
        (["algo=torch_ddp"], "torch_ddp is PyTorch's own code, which needs real workers"),
        (["algo=bytegrad,nonsense"], "there is no algo named 'nonsense'"),
        (["algo=allreduce", "max_step=3"], "there is no key 'max_step'"),
        (["algo=allreduce", "workers=5000"], "do not fill one batch"),
        (["algo=allreduce", "backend=gloo"], "leave out backend"),
        (["algo=allreduce", "resume=somewhere"], "leave out resume"),
        (["algo=glob(*)", "workers=0"], "workers must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_sentence(overrides, complaint):
    with pytest.raises(UserError, match=complaint):
        gather(choose(overrides), 1)


def test_predictions_for_gpus_are_not_held_against_workers_on_cpus():
    on_gpu = SimpleNamespace(backend=SimpleNamespace(device="cuda"))
    with pytest.raises(UserError, match=r"--verify runs workers on CPUs, .* device=cuda: leave"):
        check_launchable([on_gpu], [NetworkCondition()])


def test_how_simulated_workers_are_computed_is_no_matter_of_real_ones(tmp_path):
    plan = plan_of(tmp_path, "algo=allreduce", "cluster.sharing=2")
    assert (plan.cluster.stacking, plan.workers) == ("vmap", 2)
    check_launchable([plan], [NetworkCondition()])


def test_no_seeds_are_refused():
    with pytest.raises(UserError, match="--seeds must be at least 1, got 0"):
        choose(["algo=allreduce"], 0)


def test_a_glob_leaves_out_what_cannot_be_simulated_and_says_why():
    field = gather(choose(["algo=glob([allreduce,torch_ddp])", *SMALL]), 2)
    assert [candidate.algo for candidate in field.candidates] == ["allreduce"]
    assert [plan.seed for plan in field.candidates[0].plans] == [0, 1]
    assert "needs real workers" in field.left_out["torch_ddp"]


def test_what_is_rehearsed_needs_no_target():
    words = ["algo=allreduce", "target_accuracy=null", *SMALL]
    (candidate,) = gather(choose(words), 1, num_rehearsals=1).candidates
    assert candidate.profile.work_s > 0


@pytest.mark.parametrize(
    ("briefly", "times_s", "fastest_s", "num_left"),
    [
        (True, [1.02, 1.0, 0.5], 1.0, 1),  # two agree
        (True, [1.0, 1.1, 0.9], 0.9, 0),
        (False, [1.0, 1.0, 0.5], 0.5, 0),
    ],
)
def test_two_rehearsals_do_where_they_agree(monkeypatch, briefly, times_s, fastest_s, num_left):
    left = list(times_s)

    def measured(plan, data, seconds, tell):
        return SimpleNamespace(work_s=left.pop(0))

    monkeypatch.setattr(candidates, "get_profile", measured)
    (candidate,) = gather(choose(["algo=allreduce", *SMALL]), 1, briefly=briefly).candidates
    assert (candidate.profile.work_s, len(left)) == (fastest_s, num_left)


def test_what_trainings_may_take_is_known_from_the_first_rehearsal_on(monkeypatch):
    works_s = iter([1.0, 3.0, 2.0, 3.0])
    monkeypatch.setattr(candidates, "get_profile", lambda *_: SimpleNamespace(work_s=next(works_s)))
    told = []
    choice = choose(["algo=allreduce,bytegrad", *SMALL])
    found = gather(choice, 1, num_rehearsals=2, expect=told.append).candidates
    one_s = found[0].training_s  # by the faster of both rehearsals, of 1 s
    assert told == [[one_s, one_s], [one_s, 3 * one_s], [one_s, 3 * one_s], [one_s, 3 * one_s]]
    assert told[-1] == [candidate.training_s for candidate in found]


def test_a_prediction_evaluates_for_the_target_alone(tmp_path):
    plan = plan_of(tmp_path, "algo=decentralized", "target_accuracy=0.5")
    data = plan.task.load()
    profile = rehearse(plan, data, sharing=1, num_steps=2, seconds=0)
    rows = []
    train_simulated(plan, data, profile, rows.append)
    training = record_training(plan, data, profile)
    assert all(row.own_score is not None for row in rows if row.is_evaluation)
    assert training.rows == [replace(row, own_score=None) for row in rows]
    assert training.result is not None and math.isnan(training.result.test.accuracy)


def test_a_prediction_makes_no_folder_that_a_kill_would_leave(monkeypatch):
    def mkdtemp(*arguments, **options):
        raise AssertionError("a temporary folder")

    monkeypatch.setattr(tempfile, "mkdtemp", mkdtemp)
    words = ["algo=allreduce", "trace=true", *SMALL]
    (candidate,) = gather(choose(words), 1).candidates
    assert candidate.outcomes(NetworkCondition(rate_mbit=10))
    [plan] = candidate.plans
    assert not plan.trace
    with pytest.raises(NotADirectoryError):
        (plan.folder / "anything").touch()


def test_networks_with_other_nodes_are_refused_where_workers_average_within_nodes():
    words = ["algo=allreduce", "algo.hierarchical=true", "net=two_sites", *SMALL]
    (candidate,) = gather(choose(words), 1).candidates
    with pytest.raises(UserError, match="allreduce averages within nodes"):
        candidate.outcomes(NetworkCondition(rate_mbit=10))


def test_networks_of_more_workers_and_those_that_let_nothing_through_are_refused():
    (candidate,) = gather(choose(["algo=allreduce", *SMALL]), 1).candidates
    with pytest.raises(UserError, match="workers names the rank 70, and"):
        candidate.outcomes(NetworkCondition(workers={70: {"rate_mbit": 1}}))
    with pytest.raises(UserError, match="never ends: a link that it needs is down for ever"):
        candidate.outcomes(NetworkCondition(loss_pct=100))


def test_the_command_ranks_on_all_networks_and_writes_a_page(tmp_path):
    ended = advise(
        *("algo=allreduce,async", *SMALL, "target_accuracy=0.6", "--seeds", "1"),
        *("net=lan_1g", "net.delay_ms=2"),
        *("--on", "net=slow_tcp", "--on", "net.rate_mbit=20 net.delay_ms=5"),
        *("--out", str(tmp_path / "out")),
    )
    assert ended.returncode == 0, ended.stderr
    page = (tmp_path / "out" / "advice.md").read_text()
    assert "network slow_tcp with rate_mbit=20, delay_ms=5, 2 workers" in page
    assert "network lan_1g with delay_ms=2, 2 workers" in page
    assert page.count("simulated, 1 seed") == 3
    assert "The values of async depend on timing" in ended.stdout
    assert "Two algorithms tie where" in page
    # all-reduce was trained once for all networks, and async on each
    assert ended.stderr.count("trained allreduce") == 1
    assert ended.stderr.count("trained async") == 3
    said = [line for line in ended.stderr.splitlines() if line.startswith("trained ")]
    assert len(said) == 4 and "; 100 % done" not in said[0]
    assert said[-1].endswith("; 100 % done, about 0 s left")


@pytest.mark.root
def test_first_choices_are_run_for_real():
    ended = advise(*("algo=allreduce", *SMALL), *("target_accuracy=0.5", "--seeds=1", "--verify=1"))
    assert ended.returncode == 0, ended.stderr
    assert "ran allreduce, seed 0, for real: reached after" in ended.stderr
    assert "measured (s)" in ended.stdout
    assert "2 on a device" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("net=nonsense",), "there is no net named 'nonsense'"),
        (("algo=allreduce", *SMALL, "target_accuracy=null"), "and there is none: give target_acc"),
        (("algo=allreduce", "--on", "workers=3"), "--on takes overrides of net"),
        (("algo=allreduce", "algo.hierarchical=true", *SMALL), "needs a network with nodes"),
        (
            ("algo=bytegrad", "algo.hierarchical=true", "--on=net=two_sites", "--on=net=lan_1g"),
            "bytegrad averages within nodes",
        ),
        (
            ("algo=allreduce", *SMALL, "cluster.straggler=1", "--verify=1"),
            "--verify runs real workers: cluster.straggler=1 is of simulated workers: leave ",
        ),
    ],
)
def test_the_command_refuses_with_exit_code_2(arguments, complaint):
    ended = advise(*arguments)
    assert ended.returncode == 2, ended.stdout + ended.stderr
    assert complaint in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
