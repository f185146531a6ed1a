from itertools import combinations

import pytest
from matplotlib import colors

from experiments.plan.messages import choices
from experiments.report.styles import (
    FAMILIES,
    algo_of,
    areas_of,
    look_of,
    styles_of,
)

KNOWN = [algo for family in FAMILIES.values() for algo in family]


def luminance(color):
    """As WCAG 2 has it: 0 for black, 1 for white."""
    parts = [
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in colors.to_rgb(color)
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_every_algorithm_there_is_has_a_family():
    assert sorted(KNOWN) == choices("algo")


def test_lines_of_two_algorithms_are_told_apart_by_colour_and_without():
    for one, other in combinations(map(look_of, KNOWN), 2):
        assert one.color != other.color
        assert (one.marker, one.dash) != (other.marker, other.dash)


def test_members_of_a_family_differ_in_marker_dash_and_lightness():
    for family in FAMILIES.values():
        for one, other in combinations(map(look_of, family), 2):
            assert one.marker != other.marker and one.dash != other.dash
            assert abs(luminance(one.color) - luminance(other.color)) > 0.02


@pytest.mark.parametrize("algo", [*KNOWN, "unknown"])
def test_lines_stand_out_from_white(algo):
    assert 1.05 / (luminance(look_of(algo).color) + 0.05) >= 3  # WCAG 2.1 asks 3:1 of graphics


def test_an_algorithm_looks_the_same_whatever_stands_beside_it():
    for styles in (styles_of, areas_of):
        alone = styles(["bytegrad"])["bytegrad"]
        assert styles(["allreduce", "bytegrad", "mine"])["bytegrad"] == alone


def test_an_unknown_name_has_a_look_of_its_own_and_always_the_same():
    assert look_of("mine") == look_of("mine") != look_of("yours")
    assert look_of("mine").marker not in {look_of(algo).marker for algo in KNOWN}


def test_variants_of_an_algorithm_share_its_colour_and_marker():
    labels = [f"bytegrad bits={bits}" for bits in range(10, 26)]
    looks = styles_of(labels)
    assert {look["color"] for look in looks.values()} == {look_of("bytegrad").color}
    assert {look["marker"] for look in looks.values()} == {look_of("bytegrad").marker}
    assert len({(look["linestyle"], look["fillstyle"]) for look in looks.values()}) == len(labels)


def test_the_algorithm_of_a_label():
    assert algo_of("bytegrad bits=4, simulated") == "bytegrad"
    assert algo_of("async, gloo") == "async"
    assert algo_of("") == ""
