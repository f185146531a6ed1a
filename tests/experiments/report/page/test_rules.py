"""The page's own arithmetic of intervals and ties gives what `statistics` gives."""

import json
import math
from importlib import resources

import numpy as np
import pytest
from scipy import stats

from experiments.report import statistics
from experiments.report.page.rules import rules
from tests.experiments.browser import browser

SIZES = (1, 2, 3, 4, 5, 6, 7, 10, 11, 40)
COMPUTE = """
(({ rules, cases, freedoms }) => {
    const finite = (values) => values.map((value) => value ?? Infinity);
    const said = (values) => values.map((value) => String(value));
    const here = new Statistics(rules);
    return {
        students: freedoms.map((freedom) => here.students(freedom)),
        cases: cases.map(([values, others, isPaired]) => {
            const both = [finite(values), finite(others), isPaired];
            const isEnough = Math.min(values.length, others.length) >= rules.min_seeds;
            return {
                median: said(here.medianInterval(both[0])),
                ratio: isEnough ? said(here.ratioInterval(...both)) : null,
                isTie: here.isTie(...both),
            };
        }),
    };
})
"""


@pytest.fixture(scope="module")
def computed(tmp_path_factory):
    """What the page's script says of samples, with these samples."""
    cases = list(_cases())
    freedoms = [2, 2.0001, 3, 7.3, 58, 1e6]
    plain = [
        [[None if math.isinf(v) else v for v in own] for own in both] + [is_paired]
        for *both, is_paired in cases
    ]
    asked = json.dumps({"rules": rules(SIZES), "cases": plain, "freedoms": freedoms})
    folder = resources.files("experiments.report.page")
    scripts = [(folder / f"script/{name}.js").read_text() for name in ("numbers", "statistics")]
    with browser(tmp_path_factory.mktemp("chromium")) as page:
        page.open("data:text/html,")
        found = page.ask("\n".join([*scripts, f"{COMPUTE}({asked})"]))
    return cases, freedoms, found


def _cases():
    """Samples of few and many times: with and without misses, equal ones, close and far ones."""
    chance = np.random.default_rng(26)
    for size in SIZES:
        for other in (size, *SIZES):
            for ratio in (1.0, 1.05, 2.0):
                values = chance.lognormal(2, 0.1, size)
                others = ratio * chance.lognormal(2, 0.1, other)
                is_paired = size == other
                yield values.tolist(), others.tolist(), is_paired
                values[chance.random(size) < 0.3] = math.inf
                yield values.tolist(), others.tolist(), is_paired
                others[chance.random(other) < 0.6] = math.inf
                yield values.tolist(), others.tolist(), is_paired
        equal = [3.0] * size
        yield equal, equal, True
        yield equal, [4.0] * size, False
        yield [0.0, *equal[1:]], [math.inf] * size, False


def _as_numbers(said):
    return [float(text.replace("Infinity", "inf")) for text in said]


def test_intervals_and_ties_of_samples_are_those_of_python(computed):
    cases, _, found = computed
    ties = 0
    for (values, others, is_paired), here in zip(cases, found["cases"], strict=True):
        expected = statistics.median_interval(values)
        assert _as_numbers(here["median"]) == pytest.approx(expected, rel=1e-12, nan_ok=True)
        if here["ratio"] is not None:
            expected = statistics.ratio_interval(values, others, paired=is_paired)
            assert _as_numbers(here["ratio"]) == pytest.approx(expected, rel=1e-12, nan_ok=True)
        is_tie = statistics.is_tie(values, others, paired=is_paired, model_error=0.0)
        assert here["isTie"] == is_tie, (values, others, is_paired)
        ties += is_tie
    assert 50 < ties < len(cases) - 50


def test_students_quantiles_of_any_freedom_are_scipys(computed):
    _, freedoms, found = computed
    assert found["students"] == pytest.approx(stats.t.ppf(0.975, freedoms).tolist(), rel=1e-12)
