"""The style of an algorithm in every figure and table: the same, whatever else is shown.

Algorithms that relax the same thing are a family, as their classes say, and share a hue, of the
palettes that Okabe and Ito, and Tol, made for colour-blind people, darkened so that it stands out
from white. Within a family, members differ by lightness, marker, dash and hatch. No two settled
algorithms share both marker and dash, so their lines are told apart in grey, too. A name without a
YAML in conf/algo takes its hue, marker and dash from a hash of the name: the same everywhere, and
with a marker that no settled algorithm has.

What else a label says, an option or a back end, changes dash, hatch and the filling of the marker,
and leaves colour and marker as they are.

Sources of the hues: M. Okabe and K. Ito, Color Universal Design (2008); P. Tol, Colour Schemes,
SRON/EPS/TN/09-002.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple
from zlib import crc32

from experiments.report.figures.families import families

Styles = dict[str, dict[str, Any]]

HUES = {
    "baseline": "#999999",
    "all-reduce": "#0072b2",
    "quantized": "#d55e00",
    "sparse or low-rank": "#009e73",
    "compressed Adam": "#cc79a7",
    "local SGD": "#56b4e9",
    "DiLoCo": "#999933",
    "decentralized": "#e69f00",
    "asynchronous": "#882255",
}
"""Of each family. A family that has none here has `OTHER_HUE`."""

OTHER_HUE = "#6a4fb3"

_MARKERS = "osD^vP<X>"
_OTHER_MARKERS = "phH8d*"
_DASHES = ("-", (0, (6, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
_HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "||||", "oo")
_FILLINGS = ("full", "none", "left", "right")
_SHADES = (0.85, 0.65, 0.5, 0.36, 0.75, 0.57, 0.43, 0.3)
"""Of a hue, by the place in the family."""


class Style(NamedTuple):
    """A colour as "#rrggbb", a marker of Matplotlib's, and the places of dash and hatch."""

    color: str
    marker: str
    dash: int
    hatch: int


def style_of(algo: str) -> Style:
    """That of an algorithm, with a YAML or without."""
    return _styles().get(algo) or _by_hash(algo)


def algorithm_of(label: str) -> str:
    """The algorithm of a label such as "bytegrad bits=4, simulated"."""
    return re.split("[ ,]", label, maxsplit=1)[0]


def line_styles(labels: Iterable[str]) -> Styles:
    """The colour, marker and dash of each label's line, in the order of the labels."""
    return {
        label: {
            "color": style.color,
            "marker": style.marker,
            "linestyle": _DASHES[(style.dash + variant + variant // 4) % len(_DASHES)],
            "fillstyle": _FILLINGS[variant % len(_FILLINGS)],
        }
        for label, (style, variant) in _variants(labels).items()
    }


def area_styles(labels: Iterable[str]) -> Styles:
    """The colour of each label's line, lighter, and a hatch: of bars and fields."""
    return {
        label: {
            "facecolor": lighter(style.color, 0.4),
            "hatch": _HATCHES[(style.hatch + variant) % len(_HATCHES)],
            "edgecolor": "0.25",
        }
        for label, (style, variant) in _variants(labels).items()
    }


def _variants(labels: Iterable[str]) -> dict[str, tuple[Style, int]]:
    """Each label's style, and the how-many-th of its algorithm's labels it is."""
    numbers: dict[str, int] = defaultdict(int)
    variants = {}
    for label in sorted(set(labels)):
        algo = algorithm_of(label)
        variants[label] = style_of(algo), numbers[algo]
        numbers[algo] += 1
    return variants


@cache
def _styles() -> dict[str, Style]:
    """Of all algorithms that have a YAML."""
    others = [name for family, names in families().items() if family not in HUES for name in names]
    members = {family: families().get(family, ()) for family in HUES} | {"other": sorted(others)}
    return {
        algo: _member(family, place)
        for family, algos in members.items()
        for place, algo in enumerate(algos)
    }


def _member(family: str, place: int) -> Style:
    """Markers step by the family and by twice the place: both tell two lines apart. From the fifth
    place on, and for families without a hue, they are those of no settled algorithm.
    """
    number = list(HUES).index(family) if family in HUES else len(HUES)
    is_settled = family in HUES and place < len(_DASHES)
    markers, step = (_MARKERS, 2) if is_settled else (_OTHER_MARKERS, 1)
    return Style(
        color=_darker(HUES.get(family, OTHER_HUE), _SHADES[place % len(_SHADES)]),
        marker=markers[(number + step * place) % len(markers)],
        dash=place % len(_DASHES),
        hatch=(number + 3 * place) % len(_HATCHES),
    )


def _by_hash(algo: str) -> Style:
    digits = crc32(algo.encode())
    hue = list(HUES.values())[digits % len(HUES)]
    return Style(
        color=_darker(hue, _SHADES[0]),
        marker=_OTHER_MARKERS[digits // 16 % len(_OTHER_MARKERS)],
        dash=digits // 256 % len(_DASHES),
        hatch=digits // 4096 % len(_HATCHES),
    )


def _darker(color: str, share: float) -> str:
    """That `share` of its light."""
    return _hex(share * part for part in _parts(color))


def lighter(color: str, share: float) -> str:
    """That `share` of the way to white."""
    return _hex(part + share * (255 - part) for part in _parts(color))


def _parts(color: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(color[1:]))


def _hex(parts: Iterable[float]) -> str:
    return "#" + "".join(f"{round(part):02x}" for part in parts)
