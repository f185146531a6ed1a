"""How an algorithm looks in every figure and table: always the same, whatever else is shown.

Algorithms that relax the same thing are a family and share a hue, of the palettes that Okabe and
Ito, and Tol, made for colour-blind people, darkened so that it stands out from white. Within a
family, members differ by lightness, marker, dash and hatch. No two known algorithms share both
marker and dash, so their lines are told apart in grey, too. A name that is in no family takes its
hue, marker and dash from a hash of it: the same everywhere, and with a marker that no known
algorithm has.

What else a label says, an option or a back end, changes dash, hatch and the filling of the marker,
and leaves colour and marker as they are.

Sources of the hues: M. Okabe and K. Ito, Color Universal Design (2008); P. Tol, Colour Schemes,
SRON/EPS/TN/09-002.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple
from zlib import crc32

Styles = dict[str, dict[str, Any]]

FAMILIES = {  # hue: the algorithms of a family, from the lightest
    "#999999": ("torch_ddp", "torch_ddp_bf16", "torch_ddp_powersgd"),
    "#0072b2": ("allreduce", "allreduce_fp8"),
    "#d55e00": ("bytegrad", "qsgd", "ef_signsgd"),
    "#009e73": ("power_sgd", "top_k"),
    "#cc79a7": ("qadam", "one_bit_adam"),
    "#56b4e9": ("local_sgd", "post_local_sgd", "slowmo"),
    "#999933": ("diloco", "diloco_int8"),
    "#e69f00": ("decentralized", "low_precision_decentralized", "choco_sgd", "sgp"),
    "#882255": ("async",),
}

_MARKERS = "osD^vP<X>"
_OTHER_MARKERS = "phH8d*"
_DASHES = ("-", (0, (6, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
_HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "||||", "oo")
_FILLINGS = ("full", "none", "left", "right")
_SHADES = (0.85, 0.65, 0.5, 0.36)
"""Of a hue, by the place in the family."""


class Look(NamedTuple):
    """A colour as "#rrggbb", a marker of Matplotlib's, and the places of dash and hatch."""

    color: str
    marker: str
    dash: int
    hatch: int


def look_of(algo: str) -> Look:
    """That of an algorithm, known or not."""
    return _KNOWN.get(algo) or _other(algo)


def algo_of(label: str) -> str:
    """The algorithm of a label such as "bytegrad bits=4, simulated"."""
    return re.split("[ ,]", label, maxsplit=1)[0]


def styles_of(labels: Iterable[str]) -> Styles:
    """The colour, marker and dash of each label's line, in the order of the labels."""
    return {
        label: {
            "color": look.color,
            "marker": look.marker,
            "linestyle": _DASHES[(look.dash + variant + variant // 4) % len(_DASHES)],
            "fillstyle": _FILLINGS[variant % len(_FILLINGS)],
        }
        for label, (look, variant) in _variants(labels).items()
    }


def areas_of(labels: Iterable[str]) -> Styles:
    """The colour of each label's line, lighter, and a hatch: of bars and fields."""
    return {
        label: {
            "facecolor": _lighter(look.color, 0.4),
            "hatch": _HATCHES[(look.hatch + variant) % len(_HATCHES)],
            "edgecolor": "0.25",
        }
        for label, (look, variant) in _variants(labels).items()
    }


def _variants(labels: Iterable[str]) -> dict[str, tuple[Look, int]]:
    """Each label's look, and the how-many-th of its algorithm's labels it is."""
    numbers: dict[str, int] = defaultdict(int)
    variants = {}
    for label in sorted(set(labels)):
        algo = algo_of(label)
        variants[label] = look_of(algo), numbers[algo]
        numbers[algo] += 1
    return variants


def _member(family: int, place: int) -> Look:
    """Markers step by the family and by twice the place: both tell two lines apart."""
    hue = list(FAMILIES)[family]
    return Look(
        color=_darker(hue, _SHADES[place]),
        marker=_MARKERS[(family + 2 * place) % len(_MARKERS)],
        dash=place,
        hatch=(family + 3 * place) % len(_HATCHES),
    )


def _other(algo: str) -> Look:
    digits = crc32(algo.encode())
    hue = list(FAMILIES)[digits % len(FAMILIES)]
    return Look(
        color=_darker(hue, _SHADES[0]),
        marker=_OTHER_MARKERS[digits // 16 % len(_OTHER_MARKERS)],
        dash=digits // 256 % len(_DASHES),
        hatch=digits // 4096 % len(_HATCHES),
    )


def _darker(color: str, share: float) -> str:
    """That `share` of its light."""
    return _hex(share * part for part in _parts(color))


def _lighter(color: str, share: float) -> str:
    """That `share` of the way to white."""
    return _hex(part + share * (255 - part) for part in _parts(color))


def _parts(color: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(color[1:]))


def _hex(parts: Iterable[float]) -> str:
    return "#" + "".join(f"{round(part):02x}" for part in parts)


_KNOWN = {
    algo: _member(family, place)
    for family, algos in enumerate(FAMILIES.values())
    for place, algo in enumerate(algos)
}
