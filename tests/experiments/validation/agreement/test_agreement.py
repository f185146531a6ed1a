"""Steps to a target of real and of simulated workers, from records."""

import json
import math
import shutil

import pytest

from experiments.commands.checks import agreement
from experiments.report.statistics import MAX_PAIRS, flip_p_value
from experiments.runs.actions import Command
from experiments.runs.parts import load_parts
from experiments.runs.summary import CTRL_C, NOT_ENDED
from experiments.training.metrics import MetricsRow
from experiments.validation.agreement import pairs
from experiments.validation.agreement.page import page
from host import conf
from host.errors import UserError
from tests.experiments.recorded import write_run

SEEDS = range(6)
TARGETS = {"allreduce": 0.8, "local_sgd": 0.8}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All-reduce is the same, real and simulated; local SGD learns less far when it is real, and
    misses with one seed.
    """
    root = tmp_path_factory.mktemp("runs")
    for seed in SEEDS:
        for backend in ("gloo", "sim"):
            write_run(root / f"allreduce_{backend}_{seed}", seed=seed, backend=backend)
            limit = {"sim": 0.98, "gloo": 0.85 if seed else 0.7}[backend]
            folder = root / f"local_sgd_{backend}_{seed}"
            write_run(folder, "local_sgd", seed=seed, limit=limit, backend=backend)
    return root


def first_step(limit, rate):
    """Of `write_run`'s accuracies, but for their noise."""
    return 10 * math.ceil(-math.log((limit - 0.8) / 0.9) / (0.3 * rate))


def test_steps_are_those_of_the_first_evaluation_at_the_target_and_a_miss_comes_after_all(runs):
    same, other = pairs.compare(runs, TARGETS)
    assert list(same.real) == list(same.simulated) == [first_step(0.98, 1.0)] * len(SEEDS)
    assert (same.num_same, same.num_equal, same.p_value, same.apart) == (6, 6, 1.0, 0.0)
    assert list(other.simulated) == [first_step(0.98, 0.7)] * len(SEEDS)
    assert list(other.real) == [210] + [first_step(0.85, 0.7)] * (len(SEEDS) - 1)
    assert (other.num_missed, other.num_same, other.num_equal) == (1, 0, 0)
    assert other.p_value == flip_p_value(other.real, other.simulated) == 2 / 64


def test_steps_are_those_of_the_mean_worker_where_all_runs_say_them(tmp_path):
    for seed in range(2):
        for backend in ("gloo", "sim"):
            lead = 2.5 if backend == "gloo" else 0.0
            write_run(tmp_path / f"{backend}_{seed}", seed=seed, backend=backend, lead=lead)
    [own] = pairs.compare(tmp_path, {"allreduce": 0.8})
    last = first_step(0.98, 1.0)
    assert (list(own.real), list(own.simulated)) == ([last + 2.5] * 2, [last] * 2)
    assert f"| {last + 2.5} ({last + 2.5} to {last + 2.5}) |" in page([own], "a command")
    shutil.rmtree(tmp_path / "sim_0")
    write_run(tmp_path / "sim_0", seed=0, backend="sim")
    with pytest.raises(UserError, match=r"some runs of allreduce say .* and others do not: run"):
        pairs.compare(tmp_path, {"allreduce": 0.8})


def test_losses_are_apart_by_the_part_that_is_greatest(runs):
    pair_of = {own.algo: own for own in pairs.compare(runs, TARGETS)}
    # At the last evaluation of seed 0: 1.1 - 0.7 against 1.1 - 0.98, but for what both approach.
    assert pair_of["local_sgd"].apart == pytest.approx(0.4 / 0.12 - 1, rel=0.2)


def test_the_page_says_which_are_one_trajectory_and_which_differ(runs):
    text = page(pairs.compare(runs, TARGETS), "python -m experiments.agreement")
    flat = " ".join(text.split())
    assert "**1 of 2 algorithms have one trajectory with real and with simulated workers" in flat
    assert "in every seed**: allreduce." in flat
    assert "Of local_sgd some trajectories part" in flat
    assert "real workers need" in flat
    row = next(line for line in text.splitlines() if line.startswith("| allreduce"))
    assert row.endswith("| 0 | 6/6 | 0 | 6/6 | 1.00 to 1.00 | - | - | - |")


def test_algorithms_of_one_trajectory_count_in_no_correction(runs):
    # 2 / 64 is less than 0.05, and more than the half that the first of two tests would need.
    text = page(pairs.compare(runs, TARGETS), "python -m experiments.agreement")
    assert "**The steps of local_sgd are not of one distribution**" in " ".join(text.split())
    assert "0.031 *" in text


def test_algorithms_whose_trajectories_part_share_the_correction(runs, tmp_path):
    shutil.copytree(runs, tmp_path, dirs_exist_ok=True)
    for seed in SEEDS:
        for backend, limit in (("sim", 0.98), ("gloo", 0.979)):
            folder = tmp_path / f"bytegrad_{backend}_{seed}"
            write_run(folder, "bytegrad", seed=seed, limit=limit, backend=backend)
    compared = pairs.compare(tmp_path, TARGETS | {"bytegrad": 0.8})
    text = page(compared, "python -m experiments.agreement")
    assert "**no algorithm's steps are told from one distribution**" in " ".join(text.split())
    assert " *" not in text.split("| local_sgd", 1)[1].splitlines()[0]


def test_each_algorithm_is_told_of_its_own_seeds(tmp_path):
    for algo, num_seeds in (("allreduce", 2), ("local_sgd", 3)):
        for seed in range(num_seeds):
            for backend in ("gloo", "sim"):
                folder = tmp_path / f"{algo}_{backend}_{seed}"
                write_run(folder, algo, seed=seed, backend=backend)
    text = page(pairs.compare(tmp_path, TARGETS), "python -m experiments.agreement")
    assert "2 to 3 seeds of each of 2 algorithms, with four real workers" in " ".join(text.split())
    allreduce, local_sgd = (
        next(line for line in text.splitlines() if line.startswith(f"| {algo}")) for algo in TARGETS
    )
    assert allreduce.count("| 2/2 |") == local_sgd.count("| 3/3 |") == 2


def test_targets_are_two_points_below_the_median_of_the_best(tmp_path):
    for seed, limit in enumerate((0.9, 0.97, 0.8)):
        write_run(tmp_path / f"{seed}", "bytegrad", seed=seed, limit=limit, backend="sim")
    targets = pairs.rule_targets(tmp_path)
    assert targets == {"bytegrad": pytest.approx(0.9 - 0.02, abs=0.01)}
    pairs.save_targets(targets, tmp_path / "targets.yaml")
    assert pairs.load_targets(tmp_path / "targets.yaml") == targets


def test_the_command_makes_both_files(runs, tmp_path, monkeypatch, capsys):
    for seed in range(3):
        write_run(tmp_path / f"runs/{seed}", seed=seed, backend="sim")
    targets, made = tmp_path / "targets.yaml", tmp_path / "page.md"
    words = ["targets", str(tmp_path / "runs"), "--out", str(targets)]
    monkeypatch.setattr("sys.argv", ["", *words])
    assert agreement.main() == 0
    words = ["steps", str(runs), "--targets", str(targets), "--out", str(made)]
    monkeypatch.setattr("sys.argv", ["", *words])
    assert agreement.main() == 0
    assert capsys.readouterr().out == f"{targets}\n{made}\n"
    assert made.read_text().startswith("# Do real and simulated workers need equally many steps?")


def test_runs_that_make_no_pairs_are_refused(runs, tmp_path):
    with pytest.raises(UserError, match="of bytegrad, real and simulated: real none, simulated no"):
        pairs.compare(runs, {"bytegrad": 0.8})
    with pytest.raises(UserError, match="has other runs than simulated ones, or none"):
        pairs.rule_targets(runs)
    for unfit in ("[]", "allreduce: 90", "allreduce: .nan", "allreduce: 0"):
        (tmp_path / "targets.yaml").write_text(unfit)
        with pytest.raises(UserError, match=r"has no targets, such as allreduce: 0\.9"):
            pairs.load_targets(tmp_path / "targets.yaml")


@pytest.mark.parametrize("reason", [NOT_ENDED, CTRL_C])
def test_runs_of_which_nobody_knows_what_they_reach_are_refused(tmp_path, reason):
    cut = {"status": "failed", "reason": reason, "num_rows": 3}
    for seed in range(2):
        write_run(tmp_path / f"gloo_{seed}", seed=seed, backend="gloo", **(cut if seed else {}))
        write_run(tmp_path / f"sim/{seed}", seed=seed, backend="sim")
    said = "gloo_1 is still running, or was interrupted, so that nobody knows what it reaches"
    with pytest.raises(UserError, match=said):
        pairs.compare(tmp_path, {"allreduce": 0.8})
    assert pairs.rule_targets(tmp_path / "sim")
    write_run(tmp_path / "sim/2", "bytegrad", backend="sim", **cut)
    with pytest.raises(UserError, match="2 is still running, or was interrupted"):
        pairs.rule_targets(tmp_path / "sim")


def test_a_run_that_diverged_is_a_miss(tmp_path):
    for seed in range(2):
        for backend in ("gloo", "sim"):
            write_run(tmp_path / f"{backend}_{seed}", seed=seed, backend=backend)
    diverged = {"status": "diverged", "reason": "the loss is nan at step 30", "num_rows": 2}
    for backend in ("gloo", "sim"):
        write_run(tmp_path / f"{backend}_2", seed=2, backend=backend, **diverged)
    [found] = pairs.compare(tmp_path, {"allreduce": 0.8})
    assert found.num_missed == 2


def test_several_runs_of_a_seed_and_runs_without_evaluations_are_refused(tmp_path):
    for seed in range(2):
        for backend in ("gloo", "sim"):
            write_run(tmp_path / f"{backend}_{seed}", seed=seed, backend=backend, num_rows=1)
    with pytest.raises(UserError, match="runs of allreduce have fewer than two evaluations"):
        pairs.compare(tmp_path, {"allreduce": 0.8})
    write_run(tmp_path / "again", seed=1, backend="sim")
    said = "again and .*sim_1 are two runs of allreduce, backend=sim, seed 1: keep one"
    with pytest.raises(UserError, match=said):
        pairs.compare(tmp_path, {"allreduce": 0.8})


def test_a_run_without_a_seed_is_refused(tmp_path):
    write_run(tmp_path / "seedless", backend="sim")
    file = tmp_path / "seedless/summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"seed": None}))
    with pytest.raises(UserError, match="seedless has no seed, so that it makes no pair: leave it"):
        pairs.compare(tmp_path, {"allreduce": 0.8})


def test_more_seeds_than_the_exact_test_takes_are_refused(tmp_path):
    for seed in range(MAX_PAIRS + 1):
        for backend in ("gloo", "sim"):
            write_run(tmp_path / f"{backend}_{seed}", seed=seed, backend=backend, num_rows=2)
    with pytest.raises(UserError, match="has 17 seeds of allreduce, and the exact test takes 16"):
        pairs.compare(tmp_path, {"allreduce": 0.8})


def test_a_loss_that_is_nan_is_apart_from_any_number():
    def rows(*losses):
        return [
            MetricsRow(kind="evaluation", step=step, time_s=0.0, validation_loss=loss)
            for step, loss in enumerate(losses)
        ]

    for real, simulated in (((1.0, 1.0), (1.0, math.nan)), ((math.nan, 1.0), (1.0, 1.0))):
        assert pairs.Pair(seed=0, real=rows(*real), simulated=rows(*simulated)).apart == math.inf


def words_of(part):
    """What the sweeps of a part of the study give each key."""
    found = {}
    for action in part.actions:
        if isinstance(action, Command) and action.arguments[0] == "experiments":
            for word in action.arguments[2:]:
                key, _, values = word.partition("=")
                found.setdefault(key, set()).update(values.split(","))
    return found


def test_the_study_has_every_algorithm_and_its_targets_are_of_seeds_that_do_not_count():
    parts = {part.name: part for part in load_parts("real_and_simulated")}
    counted = [words_of(parts[name]) for name in ("simulated", "real")]
    of_targets = words_of(parts["targets"])
    algorithms = {name for name in conf.files("algo") if not name.startswith("torch_ddp")}
    for words in (*counted, of_targets):
        assert words["algo"] == algorithms
    assert counted[0]["seed"] == counted[1]["seed"] == set(map(str, range(10)))
    assert len(of_targets["seed"]) >= 3 and of_targets["seed"].isdisjoint(counted[0]["seed"])


def write_pairs(root, algo="allreduce", real=None, simulated=None):
    """Two seeds, real and simulated, with further arguments of `write_run`."""
    for seed in range(2):
        for backend, fields in (("gloo", real), ("sim", simulated)):
            folder = root / f"{algo}_{backend}_{seed}"
            write_run(folder, algo, seed=seed, backend=backend, **fields or {})


@pytest.mark.parametrize(
    ("real", "simulated", "said"),
    [
        ({"workers": 4}, {"workers": 2}, r"workers \(2, 4\)"),
        ({"task": "mnist5k"}, {"task": "jane_austen"}, r"task \(jane_austen, mnist5k\)"),
        ({"model": "cnn"}, {"model": "mlp"}, r"model \(cnn, mlp\)"),
        ({"optim": "sgd"}, {"optim": "adam"}, r"optim \(adam, sgd\)"),
        ({"lr_scale": 1.0}, {"lr_scale": 0.3}, r"lr_scale \(0.3, 1\)"),
        ({"of_model": {"hidden": 8}}, {"of_model": {"hidden": 9}}, r"model.hidden \(8, 9\)"),
        ({"options": {"bits": 8}}, {"options": {"bits": 2}}, r"bits \(2, 8\)"),
        ({"lr": 0.1}, {"lr": 0.5}, r"optim.lr \(0.1, 0.5\)"),
        ({"net": "wan"}, {"net": "lan_1g"}, r"net \(lan_1g, wan\)"),
        ({"of_net": {"delay_ms": 5}}, {"of_net": {"delay_ms": 6}}, r"net.delay_ms \(5, 6\)"),
        *(
            ({"of_run": {key: one}}, {"of_run": {key: other}}, rf"{key} \({one}, {other}\)")
            for key, one, other in (
                *(("accumulate", 1, 4), ("eval_every", 10, 40), ("max_steps", 100, 200)),
                *(("clip_norm", 1, 2), ("streams", 1, 8), ("stop_at_target", False, True)),
            )
        ),
    ],
)
def test_real_and_simulated_workers_of_unlike_runs_are_not_compared(
    tmp_path, real, simulated, said
):
    write_pairs(tmp_path, real=real, simulated=simulated)
    whole = f"^the runs of allreduce differ in {said}: compare like runs$"
    with pytest.raises(UserError, match=whole):
        pairs.compare(tmp_path, {"allreduce": 0.8})


def test_real_and_simulated_workers_differ_in_what_makes_them_so(tmp_path):
    real = {"of_net": {"backend": "namespaces"}, "of_run": {"backend": {"process_group": "gloo"}}}
    simulated = {"cluster": {"sharing": 4}, "of_run": {"profile": "a.yaml", "device": "cpu"}}
    write_pairs(tmp_path, real=real, simulated=simulated)
    assert pairs.compare(tmp_path, {"allreduce": 0.8})[0].is_same


@pytest.mark.parametrize("backend", ["gloo", "sim"])
def test_seeds_of_one_side_differ_in_nothing(tmp_path, backend):
    write_pairs(tmp_path)
    for side in ("gloo", "sim"):
        fields = {"cluster": {"straggler": 0.5}} if side == backend else {}
        write_run(tmp_path / f"{side}_2", seed=2, backend=side, **fields)
    with pytest.raises(UserError, match=r"allreduce differ in cluster.straggler \(0.5, None\)"):
        pairs.compare(tmp_path, {"allreduce": 0.8})


@pytest.mark.parametrize(
    ("own", "others", "said"),
    [
        ({"workers": 4}, {"workers": 64}, r"workers \(4, 64\)"),
        ({"task": "mnist5k"}, {"task": "cifar10"}, r"task \(cifar10, mnist5k\)"),
        ({"options": {"bits": 2}}, {"options": {"bits": 8}}, r"bits \(2, 8\)"),
    ],
)
def test_targets_are_of_runs_that_differ_in_their_seeds_alone(tmp_path, own, others, said):
    for seed, fields in enumerate((own, others)):
        write_run(tmp_path / f"{seed}", "bytegrad", seed=seed, backend="sim", **fields)
    with pytest.raises(UserError, match=f"^the runs of bytegrad differ in {said}: compare like"):
        pairs.rule_targets(tmp_path)


def test_runs_that_do_not_say_how_many_workers_they_had_are_refused(tmp_path):
    write_pairs(tmp_path)
    file = tmp_path / "allreduce_gloo_0/summary.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"workers": None}))
    with pytest.raises(UserError, match="gloo_0 does not say its number of workers: leave it out"):
        pairs.compare(tmp_path, {"allreduce": 0.8})


def test_the_page_says_what_was_run_as_it_was_recorded(tmp_path):
    write_pairs(tmp_path, real={"workers": 2}, simulated={"workers": 2})
    text = page(pairs.compare(tmp_path, {"allreduce": 0.8}), "agreement")
    said = "with two real workers (gloo, processes of one host) and with two simulated ones"
    assert f"{said} (mnist5k, cnn). Each algorithm" in " ".join(text.split())
    assert "../../conf" not in text
    many = {"workers": 16, "model": "mlp"}
    write_pairs(tmp_path, "local_sgd", real=many, simulated=many)
    text = " ".join(page(pairs.compare(tmp_path, TARGETS), "agreement").split())
    assert "with two to 16 real workers" in text and "with two to 16 simulated ones" in text
    assert "(mnist5k, cnn; mnist5k, mlp). Each" in text


def test_the_page_of_the_study_links_to_the_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs, kept = agreement.STUDY
    write_pairs(runs)
    pairs.save_targets({"allreduce": 0.8}, runs / "targets.yaml")
    for made in (kept, kept.with_name("other.md")):
        words = ["steps", str(runs), "--targets", str(runs / "targets.yaml"), "--out", str(made)]
        monkeypatch.setattr("sys.argv", ["", *words])
        assert agreement.main() == 0
    links = "[what was run](../../conf/experiment/real_and_simulated.yaml)"
    assert f"with four simulated ones ({links}" in " ".join(kept.read_text().split())
    assert "../../conf" not in kept.with_name("other.md").read_text()
