import pytest

from experiments.predict.published import (
    TOLERANCE,
    UNEXPLAINED,
    explanation,
    markdown,
)
from experiments.predict.published_rows import (
    DDP,
    RATES_GBIT,
    ROWS,
    compare,
    nic_gbit,
)


@pytest.fixture(scope="module")
def comparisons():
    return compare()


def test_the_fitted_rows_are_met(comparisons):
    fitted = [comparison for comparison in comparisons if comparison.is_fitted]
    assert [comparison.row.name for comparison in fitted] == ["torch DDP", "BAGUA async"]
    assert [comparison.error for comparison in fitted] == pytest.approx([0, 0], abs=0.02)


def test_a_nic_carries_less_than_its_link():
    assert 10 < nic_gbit() < 100
    more = DDP.predict(1.1 * nic_gbit())
    assert more.examples_per_s > 1.01 * DDP.images_per_s[0]


def test_every_row_that_is_far_off_is_explained(comparisons):
    far = [c for c in comparisons if abs(c.error) > TOLERANCE]
    assert all(explanation(c) != UNEXPLAINED for c in far)
    assert len(far) < len(comparisons) / 2


def test_the_page_has_all_rows_at_both_rates(comparisons):
    page = markdown(comparisons)
    for row in ROWS:
        for gbit, published in zip(RATES_GBIT, row.images_per_s, strict=True):
            assert f"| {row.name} | {gbit} | {published:,.0f} |" in page
