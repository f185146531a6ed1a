import re
import sys
from dataclasses import replace
from math import inf

import numpy as np
import pytest
from omegaconf import OmegaConf

from experiments.advise.advice import BASELINE
from experiments.advise.map import sent, standing, trainings
from experiments.advise.map.answer import Answer, answers, caveats
from experiments.advise.map.job import Job, job_at
from experiments.advise.map.standing import grids, lead, model_error, settings_at, trained_near
from experiments.advise.map.trainings import load
from experiments.commands import locate
from experiments.plan.part import make_part
from experiments.report.statistics import prediction_errors
from host.errors import UserError

JOB = Job(compute_ms=180, model_mb=440, workers=8, rate_mbit=10_000, delay_ms=0.1)
WORDS = ("compute_ms=180", "model_mb=440", "rate_mbit=10000", "delay_ms=0.1", "task=fashion_mnist")


@pytest.mark.parametrize("others", [WORDS, ("--map", "m"), ("--extract", "r", *WORDS)])
def test_other_trainings_are_written_and_answer_nothing(others, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["locate", "--trainings", "mine.yaml", *others])
    with pytest.raises(UserError, match="give it beside --extract alone"):
        locate.main()


@pytest.mark.parametrize(
    ("workers", "trained"),
    [(8, [8]), (9, [8, 32]), (31, [8, 32]), (32, [32]), (64, [32, 128]), (128, [128])],
)
def test_workers_between_trainings_have_both(workers, trained):
    assert [one.workers for one in trained_near("fashion_mnist", workers)] == trained


@pytest.mark.parametrize("workers", [1, 7, 129])
def test_workers_beyond_the_trainings_are_refused(workers):
    said = f"workers={workers} is beyond .* 32 and 128: give 8 to 128$"
    with pytest.raises(UserError, match=said):
        trained_near("fashion_mnist", workers)


def test_an_answer_makes_no_model(monkeypatch):
    """Whose weights may not be installed where the map is looked at."""

    def made(node, group):
        assert group != "model"
        return make_part(OmegaConf.create(node), group)

    monkeypatch.setattr(sent, "_made", made)
    standing._sent_by.cache_clear()
    tasks = sorted({trained.task for trained in load()[1]})
    assert [bool(answer.rows()) for answer in answers(JOB, tasks)] == [True] * len(tasks)


def test_a_lead_is_the_median_of_pairs_in_their_interval():
    ratio, (low, high) = lead(np.array([1.0, 2.0, 4.0]), np.array([3.0, 6.0, 12.0]))
    assert (ratio, low, high) == pytest.approx((3, 3, 3))
    # Medians of 1.5 and 4; by seeds mostly twice as soon.
    times, others = (
        np.array([1.0, 1.5, 2.0, 3.0, 1.0, 1.5]),
        np.array([2.0, 3.0, 4.0, 6.0, 9.0, 4.0]),
    )
    ratio, (low, high) = lead(times, others)
    assert ratio == pytest.approx(2) and low <= ratio <= high
    assert lead(np.array([inf] * 3), np.array([3.0, 6.0, 12.0]))[0] == 0


def test_where_all_reduce_misses_there_is_no_lead():
    (answer,) = answers(JOB, ["fashion_mnist"])
    trained = answer.trained
    missed = tuple((inf,) * len(trained.seeds) for _ in trained.goals)
    own = [
        replace(training, steps=missed) if training.algo == BASELINE else training
        for training in trained.trainings
    ]
    answer = Answer(JOB, replace(trained, trainings=tuple(own)))
    rows = {row[1]: row[2] for row in answer.rows()}
    assert rows.pop(BASELINE).startswith("missed")
    assert {said.removesuffix(" *") for said in rows.values()} <= {"allreduce misses"}
    assert ", allreduce misses" in answer.first_said()


@pytest.mark.parametrize(
    ("num_missed", "own", "steps"),
    [
        ({"qsgd": 2}, r"[\d.]+ \(missed to [\d.]+\)", r"[\d.]+"),
        ({"qsgd": 10}, r"missed \(10/10\)", "missed"),
        ({BASELINE: 2}, r"[\d.]+ \([\d.]+ or more\)", r"[\d.]+"),
    ],
)
def test_seeds_that_missed_are_said_in_words(num_missed, own, steps):
    """So many of ten, of the algorithm or of all-reduce."""
    (answer,) = answers(JOB, ["fashion_mnist"])
    ten = tuple(range(10))

    def made(training):
        reached = (100.0,) * (10 - num_missed.get(training.algo, 0))
        missed = (inf,) * num_missed.get(training.algo, 0)
        jitter = [k + step for k, step in enumerate(reached + missed)]
        return replace(training, steps=tuple(tuple(jitter) for _ in answer.trained.goals))

    trainings = [made(one) for one in answer.trained.trainings if one.algo in (BASELINE, "qsgd")]
    trained = replace(answer.trained, seeds=ten, trainings=tuple(trainings))
    changed = Answer(JOB, trained)
    cells = {row[1]: row[2:4] for row in changed.rows()}["qsgd"]
    assert re.fullmatch(own, cells[0].removesuffix(" *"))
    assert re.fullmatch(steps, cells[1])
    assert not re.search(r"\binf\b|\b0\.00\b", " ".join(changed.sentences()))


def test_an_odd_number_of_workers_has_no_setting_that_pairs_all():
    """SGP by shift-one alone, of the novels' trainings with 8 workers."""
    odd, even = (answers(replace(JOB, workers=own), ["jane_austen"]) for own in (9, 10))
    assert [answer.left_out for answer in odd] == [["sgp"], ["sgp"]]
    assert [answer.left_out for answer in even] == [[], []]
    assert all("sgp" not in {row[1] for row in answer.rows()} for answer in odd)
    said = [one for one in caveats(odd, ["jane_austen"]) if "sgp" in one]
    assert said == [
        f"Of jane_austen with {own} workers sgp is left out: no setting of it that was tuned takes "
        "9 workers."
        for own in (8, 32)
    ]


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (replace(JOB, rate_mbit=1.0), "rho = 3.42e+04 lies outside the map, which has 0.01 to 100"),
        (replace(JOB, delay_ms=200.0), "lambda = 1.11 lies outside the map, which has 0.0001 to 1"),
        (job_at(0.01, 1e-4, 8), None),
        (job_at(100, 1, 8), None),
    ],
)
def test_a_place_beyond_the_map_is_said_to_be(job, said):
    found = [one for one in caveats(answers(job, ["fashion_mnist"]), []) if "outside" in one]
    assert [one.partition(". ")[0] for one in found] == ([said] if said else [])


def test_each_algorithm_of_the_table_has_its_setting_in_words():
    (answer,) = answers(JOB, ["fashion_mnist"])
    settings = [said.partition(": ")[::2] for said in answer.settings()]
    named = [name.partition(", ")[0] for name, _ in settings]
    assert list(dict.fromkeys(named)) == [row[1] for row in answer.rows()]
    for goal, points in enumerate(("2", "1", "0.5", "0.2")):
        for algo in dict.fromkeys(named):
            chosen = settings_at(answer.trained, algo, JOB)[goal].words
            own = {name: words for name, words in settings if name.partition(", ")[0] == algo}
            here = [own[name] for name in own if points in re.findall(r"[\d.]+", name)]
            (words,) = here or [own[algo]]
            assert sorted([f"algo={algo}", *words.split()]) == sorted(chosen.split())


def test_the_error_of_steps_makes_more_ties():
    own = load()[1][0]

    def of_error(error):
        goals = tuple(replace(goal, error=error) for goal in own.goals)
        return model_error(replace(own, goals=goals), 0)

    assert of_error(0.0) == pytest.approx(max(prediction_errors().values()))
    assert of_error(0.1) == pytest.approx(1.1 * (1 + of_error(0.0)) - 1)
    assert of_error(inf) == inf


def test_each_place_and_target_has_the_setting_whose_trial_was_the_soonest_there():
    """Of two made-up settings: one averages often and needs few steps, the other one seldom, and
    gets nearer than 1 point. Where neither gets nearer, the next easier target decides.
    """
    known = load()[1][0]
    (often, *_) = known.of("local_sgd")
    config = {**often.config, "outer": None, "compressor": None}
    often = replace(
        often, words="often", config={**config, "interval": 2}, trial_steps=(20.0, 20.0, inf, inf)
    )
    seldom = replace(
        often,
        words="seldom",
        config={**config, "interval": 20},
        trial_steps=(40.0, 40.0, 60.0, inf),
    )
    trained = replace(known, trainings=(often, seldom))

    def chosen(rho):
        job = job_at(rho, 0.001, known.workers)
        return [setting.words for setting in settings_at(trained, "local_sgd", job)]

    assert chosen(0.01) == ["often", "often", "seldom", "seldom"]
    assert chosen(100) == ["seldom"] * 4
    often = replace(often, trial_steps=(20.0, inf, inf, inf))
    seldom = replace(seldom, trial_steps=(40.0, inf, inf, inf))
    trained = replace(known, trainings=(seldom, often))
    assert chosen(0.01) == ["often"] * 4
    at = grids([trained], [[job_at(0.01, 0.001, known.workers)]])[0][3]
    steps = np.array(often.steps[3])
    assert np.isinf(at.times_s["local_sgd"][:, 0, 0]).tolist() == np.isinf(steps).tolist()


def test_the_table_is_in_the_order_of_the_times_and_marks_who_ties():
    (answer,) = answers(JOB, ["fashion_mnist"])
    rows = list(answer.rows())
    at = grids([answer.trained], [[JOB]])[0][answer.trained.goal(1.0)]
    medians = {algo: float(times[0, 0]) for algo, times in at.medians_s.items()}
    names = [row[1] for row in rows]
    assert names == sorted(names, key=medians.__getitem__)
    assert {row[1] for row in rows if "*" in row[2]} == {at.first(0, 0), *at.ties(0, 0)}
    assert BASELINE in names and names[0] == at.first(0, 0)
    first = rows[0][2].split()[0]
    by_seed = at.times_s[BASELINE][:, 0, 0] / at.times_s[names[0]][:, 0, 0]
    assert float(first) == pytest.approx(float(np.median(by_seed)), rel=0.005)


def test_the_answer_says_at_which_targets_it_holds_and_what_it_rests_on():
    (answer,) = answers(JOB, ["fashion_mnist"])
    said = "\n".join(answer.sentences())
    assert [f"{goal.accuracy:.4g}" in said for goal in answer.trained.goals] == [True] * 4
    easiest, *_, hardest = answer.trained.goals
    assert f"From {easiest.accuracy:.4g} to {hardest.accuracy:.4g}: " in said
    between = caveats(answers(replace(JOB, workers=16), ["fashion_mnist"]), ["fashion_mnist"])
    assert between[0].startswith("Nobody trained 16 workers")
    assert not caveats([answer], ["fashion_mnist"])[0].startswith("Nobody")


def test_where_nothing_is_sent_in_time_all_reduce_ties(capsys, monkeypatch):
    fast = ["compute_ms=180", "model_mb=0.01", "workers=32", "rate_mbit=100000", "delay_ms=0"]
    monkeypatch.setattr(sys, "argv", ["locate", *fast, "task=fashion_mnist"])
    assert locate.main() == 0
    said = capsys.readouterr().out
    assert "32 workers, no loss" in said
    assert "allreduce itself" in said or "; allreduce ties" in said


def test_the_command_refuses_what_it_cannot_answer(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["locate", *WORDS, "workers=4"])
    with pytest.raises(UserError, match="workers=4 is beyond the trainings"):
        locate.main()


def test_a_task_that_was_not_trained_with_so_many_workers_is_named(monkeypatch):
    source, trained = trainings.load()
    fewer = [own for own in trained if (own.task, own.workers) != ("jane_austen", 128)]
    for module in (trainings, standing):
        monkeypatch.setattr(module, "load", lambda: (source, fewer))
    job, tasks = replace(JOB, workers=128), ["fashion_mnist", "jane_austen"]
    given = answers(job, tasks)
    assert [answer.trained.task for answer in given] == ["fashion_mnist"]
    said = caveats(given, tasks)
    named = "No answer by jane_austen, which was trained with 8 and 32 workers, not with 128."
    assert named in said
    runs = len(given[0].trained.seeds) * len(given[0].trained.trainings)
    assert any(f"{runs} recorded runs (small models on fashion_mnist)" in line for line in said)
    assert [answer.trained.task for answer in answers(JOB, tasks)] == tasks
    have = "trainings of jane_austen, which have 8 and 32: give 8 to 32$"
    with pytest.raises(UserError, match=have):
        answers(job, ["jane_austen"])


def test_real_runs_want_a_page(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "argv", ["locate", "--real", str(tmp_path)])
    with pytest.raises(UserError, match="--real wants --page"):
        locate.main()
