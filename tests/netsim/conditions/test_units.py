import pytest

from netsim.conditions.units import bytes_per_s, mbit_per_s


@pytest.mark.parametrize("rate_mbit", [0, 1, 33.3, 100, 9_876.54321, float("inf")])
def test_a_byte_has_8_bits_and_both_ways_end_where_they_began(rate_mbit):
    assert bytes_per_s(rate_mbit) == rate_mbit * 1e6 / 8
    assert mbit_per_s(bytes_per_s(rate_mbit)) == pytest.approx(rate_mbit, rel=1e-15)
