"""What the page tells a screen reader, in real Chromium: one short sentence for each choice."""

import json
from collections.abc import Iterator
from itertools import product

import pytest

from tests.experiments.browser import Browser, browser
from tests.experiments.recorded import write_run
from tests.experiments.report.page.test_page import ENTER, ESCAPE, pick, show, show_runs, texts

TOLD = "document.getElementById('told').textContent"
LIVE = "[...document.querySelectorAll('[aria-live], [role=status], [role=log], output')]"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Iterator[Browser]:
    """A page of three algorithms on two networks."""
    folder = tmp_path_factory.mktemp("read")
    algos = ("allreduce", "bytegrad", "local_sgd")
    for seed, net, algo in product(range(3), ("wan", "lan_1g"), algos):
        write_run(folder / "runs" / f"{net}_{algo}_{seed}", algo, net, seed)
    with browser(folder) as page:
        show_runs(page, folder)
        yield page


@pytest.fixture
def opened(made) -> Iterator[Browser]:
    """The page as it is at first; nothing may have been complained about at the end."""
    show(made, made.folder / "report.html")
    yield made
    assert made.console == []


def told(page: Browser, words: str) -> str:
    """What is told, once it has these words."""
    page.wait(f"{TOLD}.includes({json.dumps(words)})")
    return page.ask(TOLD)


def test_nothing_is_told_at_first_and_then_by_one_place(opened):
    live = f"{LIVE}.filter((node) => node.ariaLive !== 'off').map((node) => node.id)"
    assert opened.ask(live) == ["told"]
    assert opened.ask(f"new Promise((done) => setTimeout(() => done({TOLD}), 1500))") == ""


def test_of_a_target_that_moves_the_last_is_told(opened):
    last = int(opened.ask("document.getElementById('target').max"))
    opened.ask(
        f"window.heard = []; new MutationObserver(() => heard.push({TOLD}))"
        ".observe(document.getElementById('told'), {childList: true});"
        f"for (let place = 0; place <= {last}; place++) {{"
        "  const slider = document.getElementById('target'); slider.value = place;"
        "  slider.dispatchEvent(new Event('input')); }"
    )
    opened.wait("heard.length > 0")
    target = opened.ask("document.getElementById('target').ariaValueText")
    assert opened.ask("heard") == [f"At {target} nobody is there: all have missed it."]
    assert target == f"accuracy {texts(opened, '#target-value')[0]}"
    opened.ask("document.getElementById('recorded-target').click()")
    assert told(opened, "At accuracy 0.9 ").count(".") < 5


def test_a_pair_rows_and_algorithms_are_told_in_a_sentence_each(opened):
    pick(opened, "#pair-first", "local_sgd")
    pair = told(opened, "local_sgd is faster than ")
    assert " of 2 situations that have both, slower in " in pair and len(pair) < 120
    assert "may be told apart by chance" in texts(opened, "#pair-note")[0]
    pick(opened, "[data-filter=net]", "wan")
    assert (
        told(opened, "(filtered") == "Showing 1 to 9 of 9 entries (filtered from 18 total entries)"
    )
    opened.ask("document.querySelector('#run-table_wrapper input[type=search]').focus()")
    opened.send("Input.insertText", text="bytegrad")
    told(opened, "Showing 1 to 3 of 3 entries")
    opened.ask("document.querySelector('#algorithms input').click()")
    assert told(opened, "shown") == "2 of 3 algorithms are shown."


def test_an_open_run_has_the_focus_on_its_title_and_gives_it_back(opened):
    button = "document.querySelectorAll('button[data-run]')[1]"
    opened.ask(f"{button}.focus()")
    opened.press(*ENTER)
    assert opened.ask("document.activeElement.id") == "run-heading"
    assert ", seed " in texts(opened, "#run-heading")[0]
    inner = "document.querySelector('#run-body p').closest('[tabindex]')"
    assert opened.ask(f"{inner}.tagName") == "DIV"  # not the dialog, all of which Orca would read
    opened.press(*ESCAPE)
    assert not opened.ask("document.querySelector('dialog').open")
    assert opened.ask(f"document.activeElement === {button}")


def test_what_was_told_is_not_told_again_after_a_run_was_open(opened):
    opened.ask("document.getElementById('recorded-target').click()")
    told(opened, "At accuracy 0.9 ")
    opened.ask("document.querySelector('button[data-run]').click()")
    opened.wait(f"{TOLD} === ''")
    opened.ask("document.querySelector('dialog button').click()")
    assert opened.ask(TOLD) == ""


def test_parts_of_tables_have_names_of_their_own(opened):
    box = "[data-table=time_to_accuracy]"
    opened.ask(f"document.querySelector('{box}').scrollIntoView()")
    opened.wait(f"document.querySelector('{box} .dt-container') !== null")
    for part in (".buttons-csv", "input[type=search]", ".dt-container nav"):
        names = opened.ask(
            f"[...document.querySelectorAll('{part}')].map((node) => node.ariaLabel)"
        )
        assert len(set(names)) == len(names) == 4 and any(name.endswith(": Runs") for name in names)
    order = "document.querySelector('#ranks th .dt-column-order').ariaLabel"
    assert opened.ask(order) == "place: sort"  # a reader says it with each cell below
