from itertools import combinations

import pytest
from matplotlib import colors

from experiments.plan.messages import choices
from experiments.report.figures import families as families_module
from experiments.report.figures import styles
from experiments.report.figures.families import SETTLED, families
from experiments.report.figures.styles import (
    HUES,
    algorithm_of,
    area_styles,
    line_styles,
    style_of,
)

PUBLISHED = {  # hue, and the algorithms of a family by their places in it, as in published figures
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
KNOWN = [algo for family in PUBLISHED.values() for algo in family]
NEW = """\
from dataclasses import dataclass
from bagua_algos.engine.algorithm import Algorithm

@dataclass(frozen=True, kw_only=True)
class New(Algorithm):
    rate: float = 0.5
    {line_of_family}
"""


def luminance(color):
    """As WCAG 2 has it: 0 for black, 1 for white."""
    parts = [
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in colors.to_rgb(color)
    ]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_every_algorithm_there_is_has_a_family_with_a_hue_and_a_settled_place():
    assert sorted(SETTLED) == sorted(KNOWN) == choices("algo")
    assert list(families()) == list(HUES)


def test_published_figures_keep_their_colours_and_markers():
    assert {HUES[family]: algos for family, algos in families().items()} == PUBLISHED
    settled = {
        **{"torch_ddp": ("#828282", "o", 0, 0), "allreduce": ("#006197", "s", 0, 1)},
        **{"bytegrad": ("#b55000", "D", 0, 2), "ef_signsgd": ("#6a2f00", "<", 2, 0)},
        **{"slowmo": ("#2b5a74", "o", 2, 3), "sgp": ("#533900", "v", 3, 0)},
        **{"async": ("#741d48", ">", 0, 0), "mine": ("#ad678e", "h", 3, 5)},
    }
    assert {algo: tuple(style_of(algo)) for algo in settled} == settled


@pytest.fixture
def new_algorithms(tmp_path, monkeypatch):
    """Modules and YAMLs beside those there are; calls it with the class's line on its family."""

    def add(**of_algo):
        for algo, line in of_algo.items():
            (tmp_path / f"module_of_{algo}.py").write_text(NEW.format(line_of_family=line))
            target = f"_target_: module_of_{algo}.New\nrate: ${{part:0.5,${{max_steps}}}}\n"
            (tmp_path / "conf" / "algo" / f"{algo}.yaml").write_text(target)
        _forget()

    (tmp_path / "conf" / "algo").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    yield add
    monkeypatch.undo()
    _forget()


def _forget():
    families_module.families.cache_clear()
    styles._styles.cache_clear()


def test_a_new_algorithm_gets_a_style_of_its_family_and_changes_no_other(new_algorithms):
    before = [style_of(algo) for algo in KNOWN]
    new_algorithms(a_new_one='family = "decentralized"', other="", unheard='family = "of its own"')
    assert families()["decentralized"][-1] == "a_new_one"
    assert [style_of(algo) for algo in KNOWN] == before
    new = [style_of(algo) for algo in ("a_new_one", "other", "unheard")]
    assert not {style.color for style in new} & {style.color for style in before}
    assert len({style.color for style in new}) == len({style.marker for style in new}) == 3
    for style in new:
        assert style.marker not in {other.marker for other in before}
        assert 1.05 / (luminance(style.color) + 0.05) >= 3


def test_an_algorithm_that_cannot_be_made_has_the_style_of_its_name(new_algorithms):
    name = style_of("broken")
    new_algorithms(broken="no python here")
    assert style_of("broken") == name


def test_lines_of_two_algorithms_are_told_apart_by_colour_and_without():
    for one, other in combinations(map(style_of, KNOWN), 2):
        assert one.color != other.color
        assert (one.marker, one.dash) != (other.marker, other.dash)


def test_members_of_a_family_differ_in_marker_dash_and_lightness():
    for family in PUBLISHED.values():
        for one, other in combinations(map(style_of, family), 2):
            assert one.marker != other.marker and one.dash != other.dash
            assert abs(luminance(one.color) - luminance(other.color)) > 0.02


@pytest.mark.parametrize("algo", [*KNOWN, "unknown"])
def test_lines_stand_out_from_white(algo):
    assert 1.05 / (luminance(style_of(algo).color) + 0.05) >= 3  # WCAG 2.1 asks 3:1 of graphics


def test_an_algorithm_has_the_same_style_whatever_stands_beside_it():
    for styles_of in (line_styles, area_styles):
        alone = styles_of(["bytegrad"])["bytegrad"]
        assert styles_of(["allreduce", "bytegrad", "mine"])["bytegrad"] == alone


def test_an_unknown_name_has_a_style_of_its_own_and_always_the_same():
    assert style_of("mine") == style_of("mine") != style_of("yours")
    assert style_of("mine").marker not in {style_of(algo).marker for algo in KNOWN}


def test_variants_of_an_algorithm_share_its_colour_and_marker():
    labels = [f"bytegrad bits={bits}" for bits in range(10, 26)]
    own = line_styles(labels)
    assert {style["color"] for style in own.values()} == {style_of("bytegrad").color}
    assert {style["marker"] for style in own.values()} == {style_of("bytegrad").marker}
    assert len({(style["linestyle"], style["fillstyle"]) for style in own.values()}) == len(labels)


def test_the_algorithm_of_a_label():
    assert algorithm_of("bytegrad bits=4, simulated") == "bytegrad"
    assert algorithm_of("async, gloo") == "async"
    assert algorithm_of("") == ""
