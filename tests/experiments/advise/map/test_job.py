from dataclasses import replace

import pytest

from experiments.advise.map.job import Job, read_job
from host.errors import UserError

TASKS = ["fashion_mnist", "movie_snippets"]
WORDS = ("compute_ms=180", "model_mb=440", "workers=32", "rate_mbit=10000", "delay_ms=0.1")


def test_rho_and_lambda_are_seconds_for_each_second_of_compute():
    job, task = read_job(WORDS, TASKS)
    # 440 MB, 31/32 of them twice, over 1.25 GB/s: 0.682 s, and 0.18 s of compute.
    assert job.rho == pytest.approx(2 * 31 / 32 * 0.352 / 0.18)
    assert job.lambda_ == pytest.approx(0.1 / 180)
    assert task is None


def test_a_place_of_the_map_is_where_its_job_lies():
    job = Job.at(3.0, 0.02, workers=64, compute_ms=50, model_mb=100)
    assert (job.rho, job.lambda_) == pytest.approx((3.0, 0.02))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*WORDS, "model_md=4"), "no key 'model_md': did you mean model_mb?"),
        ((*WORDS, "zzz=4"), "no key 'zzz': choose compute_ms"),
        ((*WORDS, "compute_ms"), "no key 'compute_ms'"),
        (WORDS[1:], "compute_ms is missing: give compute_ms=NUMBER"),
        ((*WORDS, "compute_ms=3"), "compute_ms is given twice"),
        ((*WORDS[:-1], "delay_ms=soon"), "delay_ms=soon is no number"),
        ((*WORDS[:-1], "delay_ms=-1"), "delay_ms=-1 is out of range"),
        ((*WORDS[:-1], "delay_ms=nan"), "delay_ms=nan is out of range"),
        ((*WORDS[:-1], "delay_ms=inf"), "delay_ms=inf is out of range"),
        ((*WORDS[:3], "rate_mbit=0.5", "delay_ms=1"), "rate_mbit=0.5 is out of range: give 1 to"),
        (("compute_ms=0", *WORDS[1:]), "compute_ms=0 is out of range"),
        ((*WORDS, "loss_pct=5"), "loss_pct=5 is out of range: give 0 to 1"),
        ((*WORDS, "task=mnist"), "no map of task=mnist: choose fashion_mnist or movie_snippets"),
        (tuple(w.replace("workers=32", "workers=2.5") for w in WORDS), "workers=2.5 is no whole"),
    ],
)
def test_what_is_no_job_is_refused_in_one_sentence(words, said):
    with pytest.raises(UserError) as error:
        read_job(words, TASKS)
    assert said in str(error.value)


def test_loss_and_task_may_be_added():
    job, task = read_job([*WORDS, "loss_pct=0.1", "task=movie_snippets"], TASKS)
    assert (job, task) == (replace(read_job(WORDS, TASKS)[0], loss_pct=0.1), "movie_snippets")
