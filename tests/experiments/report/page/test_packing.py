"""What a page is packed into, and what its script unpacks."""

import json
import math
from importlib import resources

import numpy as np
import pytest

from experiments.report.page.packing import (
    column,
    columns,
    packed_json,
    packed_numbers,
    rounded,
    shared,
)
from tests.experiments.browser import browser

RANDOM = np.random.default_rng(0).standard_normal(1000)
NUMBERS = {
    "none": np.empty(0),
    "one": np.array([0.1]),
    "equal": np.full(70_000, 2.5),
    "few": np.array([0.1, -0.0, 0.0, math.nan, math.inf, -math.inf] * 9),
    "random": np.append(RANDOM, math.nan),
    "rounded": rounded(RANDOM),
    "many levels": np.tile(np.arange(1 << 17) / 3, 2),
}


def test_columns_hold_equal_values_once_and_nothing_that_json_lacks():
    assert column([1, 1, 1]) == {"levels": [1], "codes": 0}
    assert column([1, True, math.inf, math.nan, None]) == {
        "levels": [1, True, "inf", None],
        "codes": [0, 1, 2, 3, 3],
    }
    found = columns([{"a": 1, "b": None}, {"a": [1, {"c": "</script>"}]}])
    assert found == {"a": {"levels": [1, '[1, {"c": "</script>"}]'], "codes": [0, 1]}}
    assert "<" not in packed_json(found)


def test_numbers_that_no_browser_has_stay_words():
    found = columns([{"seed": 2**60 + 1, "of": math.inf, "is": True, "half": 0.5}])
    levels = {name: own["levels"] for name, own in found.items()}
    assert levels == {"seed": [str(2**60 + 1)], "of": ["inf"], "is": ["true"], "half": [0.5]}


def test_rounded_numbers_are_on_the_same_side_of_every_mark():
    chance = np.random.default_rng(1)
    marks = np.round(chance.random(20), 3)
    near = marks[chance.integers(20, size=4000)] * (1 + 1e-7 * chance.standard_normal(4000))
    numbers = np.concatenate([near, marks, [0.0, math.nan, math.inf, -math.inf, 1e300]])
    found = rounded(numbers, marks.tolist())
    assert found == pytest.approx(numbers, rel=5e-7, nan_ok=True)
    for mark in marks:
        assert ((found >= mark) == (numbers >= mark)).all()
        assert ((found <= mark) == (numbers <= mark)).all()
    assert (rounded(numbers)[:4000] != numbers[:4000]).mean() > 0.9
    assert len(packed_numbers(rounded(RANDOM))) < 0.5 * len(packed_numbers(RANDOM))


def test_the_script_unpacks_what_was_packed(tmp_path_factory):
    odd = [{"a": {"levels": {"levels": [1, 2], "codes": [1, 0, 1]}}, "b": column("xyx")}]
    odd += [{"c": column("xyx")}, column([5, 5])]
    arrays: list[list[object]] = []
    packed_ = shared(odd, arrays, {})
    assert len(arrays) == 6  # of 4 columns
    templates = "".join(
        f'<template id="packed-{name}">{packed_numbers(own)}</template>'
        for name, own in NUMBERS.items()
    )
    script = (resources.files("experiments.report.page") / "script/unpack.js").read_text()
    folder = tmp_path_factory.mktemp("chromium")
    (folder / "page.html").write_text(templates)
    with browser(folder) as page:
        page.open((folder / "page.html").as_uri())
        page.ask(script)
        for name, numbers in NUMBERS.items():
            bits = f"unpackedNumbers('{name}').then((all) => [...new Uint32Array(all.buffer)])"
            assert page.ask(bits) == numbers.view("<u4").tolist(), name
        found = page.ask(f"restored({json.dumps(packed_)}, {json.dumps(arrays)})")
    assert found == [*odd[:2], {"levels": [5], "codes": [0]}]
