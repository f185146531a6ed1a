import re

import pytest

from experiments.predict.predict import StepPrediction
from experiments.predict.published import bagua as bagua_s
from experiments.predict.published import one_bit_adam
from experiments.predict.published.bagua import DDP, RATES_GBIT, ROWS, UNEXPLAINED, nic_gbit
from experiments.predict.published.page import markdown
from experiments.predict.published.table import TOLERANCE, Comparison, PublishedTable, fit
from tests.paths import ROOT


@pytest.fixture(scope="module")
def bagua():
    return bagua_s.table()


def test_one_number_is_fitted_and_its_row_is_met(bagua):
    fitted = [row for row in bagua.rows if row.is_fitted]
    assert [row.error for row in fitted] == pytest.approx([0], abs=2e-3)


def test_a_nic_carries_less_than_its_link():
    assert 10 < nic_gbit() < 100
    more = DDP.predict(1.1 * nic_gbit())
    assert more.examples_per_s > 1.01 * DDP.images_per_s[0]


def test_every_row_that_is_far_off_is_explained(bagua):
    far = [row for row in bagua.rows if row.is_far]
    assert all(row.explanation not in (None, UNEXPLAINED) for row in far)


def test_the_kept_page_fits_one_number_a_table_and_explains_every_far_row():
    page = (ROOT / "results/validation/published.md").read_text()
    assert UNEXPLAINED not in page
    for section in page.split("\n## ")[1:]:
        assert section.count("(fitted)") == 1
        rows = re.findall(
            r"^\| (.+?) \| (.+?) \|.*\| ([+-][\d.]+)%(?: \(fitted\))? \|", section, re.MULTILINE
        )
        assert len(rows) > 1
        for row, setting, error in rows:
            assert (f"- **{row}, {setting}**" in section) == (abs(float(error)) > 100 * TOLERANCE)


def test_the_page_has_all_rows_at_both_rates(bagua):
    page = markdown([bagua])
    for row in ROWS:
        for gbit, published in zip(RATES_GBIT, row.images_per_s, strict=True):
            assert f"| {row.name} | {gbit} Gbit/s | {published:,.0f} |" in page


def test_the_steps_of_1_bit_adams_table_are_the_sums_of_their_parts():
    """Its share of all-reduce is printed there, too."""
    first, last = (
        one_bit_adam.ETHERNET_ROWS[0],
        one_bit_adam.INFINIBAND_ROWS[-1],
    )
    assert first.all_reduce_ms / first.step_ms == pytest.approx(0.94, abs=0.005)
    assert last.all_reduce_ms / last.step_ms == pytest.approx(0.16, abs=0.005)


def test_a_row_is_far_off_by_its_throughput():
    step = StepPrediction(step_s=1.0, compute_s=0.5, examples_per_s=84, bytes_sent=0)
    row = Comparison(
        row="x", setting="y", published=100, batch=84, predicted=step, explanation="Since."
    )
    assert row.error == pytest.approx(-0.16)
    table = PublishedTable(title="T", source="S", fitted="F", rows=[row])
    text = table.markdown()
    assert "worst 16.0%" in text
    assert "- **x, y** (-16%). Since." in text
    assert "| x | y | 100 | 84 | -16.0% | 840 | 1000 |" in text


def test_a_fit_finds_where_a_growing_function_has_its_target():
    asked = []

    def squared(x):
        asked.append(x)
        return x**2 + 1

    assert fit(squared, 50, 1, 100) == pytest.approx(7, rel=1e-8)
    assert len(asked) < 15, "a prediction takes long"


@pytest.mark.parametrize(("target", "end"), [(1, 2), (4, 2), (100, 10), (1000, 10)])
def test_a_fit_beyond_its_limits_is_the_limit(target, end):
    assert fit(lambda x: x**2, target, 2, 10) == pytest.approx(end)
