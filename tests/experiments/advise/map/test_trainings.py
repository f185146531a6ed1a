import re

import numpy as np
import pytest

from experiments.advise.map.trainings import load
from experiments.plan.compose import compose_config
from experiments.plan.identity import plain
from tests.paths import ROOT

PAGES = {
    ("fashion_mnist", 16): "reference",
    ("fashion_mnist", 64): "reference_64",
    ("fashion_mnist", 128): "reference_128",
    ("movie_snippets", 16): "reference_movies",
    ("movie_snippets", 64): "reference_movies_64",
    ("movie_snippets", 128): "reference_movies_128",
}


@pytest.mark.parametrize("trained", load()[1], ids=lambda t: f"{t.task}-{t.workers}")
def test_steps_to_the_studys_target_are_those_of_its_page(trained):
    page = ROOT / "results/reference" / PAGES[trained.task, trained.workers] / "way_to_accuracy.md"
    rows = [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in page.read_text().splitlines()
        if line.startswith("|")
    ]
    algo, steps = rows[0].index("algorithm"), rows[0].index("steps to accuracy")
    said = {row[algo]: row[steps] for row in rows[2:]}
    for own, known in trained.steps(0).items():
        median = float(np.median(known))
        text = re.sub(r"[,* ]", "", said[own])
        assert ("missed" in text) if np.isinf(median) else float(text) == median
    assert set(said) - set(trained.steps(0)) == {"async"}


@pytest.mark.parametrize(("algo", "optim"), [("diloco_int8", "adamw"), ("qadam", "adam")])
def test_an_algorithm_is_configured_as_the_app_does_it_today(algo, optim):
    (own,) = (one for one in load()[1][0].trainings if one.algo == algo)
    words = ["experiment=reference", f"algo={algo}", f"optim={optim}", "profile=null"]
    config = plain(compose_config(words))
    assert own.config == config["algo"]
    assert load()[1][0].optims[own.optim] == config["optim"]
