"""The page of a report in real Chromium, as somebody uses it."""

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from importlib import resources
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
import yaml
from pyarrow import parquet

from experiments.report.data import ReportData
from experiments.report.page import build, fragments
from experiments.report.page.build import make_page
from experiments.report.results_table import results_table
from experiments.report.sections import SECTIONS, time_to_accuracy
from experiments.report.statistics import is_tie, ratio_interval
from experiments.runs import journal
from experiments.runs.load import load_rows, load_runs
from experiments.runs.summary import SIGTERM
from experiments.tasks.target import Target
from experiments.training.metrics import time_to_target
from host.words import significant
from tests.experiments.browser import Browser, browser
from tests.experiments.recorded import TARGET, at_target, write_run
from tests.experiments.report.reported import reported
from tests.experiments.report.test_compare import write

MAX_BYTES = 3_000_000
COMPLETE = "document.documentElement.classList.contains('complete')"
TAB, ENTER, ESCAPE, END = ("Tab", 9), ("Enter", 13, "\r"), ("Escape", 27), ("End", 35)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Path:
    return reported(tmp_path_factory)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as page:
        page.keep_downloads()
        yield page


@pytest.fixture
def page(study, chromium) -> Iterator[Browser]:
    """The study's page as it is at first; nothing may have been complained about at the end."""
    show(chromium, study / "reports" / "tradeoff" / "report.html")
    yield chromium
    assert chromium.console == []


def show(page: Browser, file: Path) -> None:
    page.console.clear()
    page.requests.clear()
    page.open(file.as_uri())
    page.wait(f"{COMPLETE} || !document.getElementById('failure').hidden")
    assert page.ask(COMPLETE), page.ask("document.getElementById('failure').textContent")


def texts(page: Browser, selector: str) -> list[str]:
    nodes = f"[...document.querySelectorAll({json.dumps(selector)})]"
    return page.ask(f"{nodes}.map((node) => node.innerText.trim())")


def rows(page: Browser, table: str) -> list[dict[str, str]]:
    """The rows of a table that are shown, by its headers."""
    headers = texts(page, f"#{table} thead th")
    cells = page.ask(
        f"[...document.querySelectorAll('#{table} tbody tr')]"
        ".map((row) => [...row.cells].map((cell) => cell.innerText.trim()))"
    )
    return [dict(zip(headers, row, strict=True)) for row in cells if len(row) == len(headers)]


def pick(page: Browser, selector: str, option: str) -> None:
    """Choose what a select offers by that text."""
    node = f"document.querySelector({json.dumps(selector)})"
    found = page.ask(
        f"(() => {{ const node = {node};"
        f"const one = [...node.options].find((option) => option.text === {json.dumps(option)});"
        "node.value = one.value; node.dispatchEvent(new Event('change')); return node.value; })()"
    )
    assert found is not None


def downloaded(page: Browser, table: str) -> list[dict[str, str]]:
    """What its button saves, once it is there."""
    file = page.folder / f"{table}.csv"
    file.unlink(missing_ok=True)
    box = f"document.getElementById('{table}').closest('.dt-container')"
    page.ask(f"{box}.querySelector('.buttons-csv').click()")
    page.wait("true")
    for _ in range(500):
        if file.exists() and file.stat().st_size:
            break
        page.ask("new Promise((done) => setTimeout(done, 20))")
    with file.open(encoding="utf-8-sig", newline="") as lines:
        return list(csv.DictReader(lines))


def test_it_opens_without_a_complaint_or_a_request_and_fits(study, page):
    file = study / "reports" / "tradeoff" / "report.html"
    assert file.stat().st_size < MAX_BYTES
    assert [url for url in page.requests if not url.startswith(("data:", "blob:"))] == [
        file.as_uri()
    ]
    assert not page.ask("[...document.querySelectorAll('section')].some((s) => !s.innerText)")
    headings = texts(page, "h2")
    links = texts(page, "nav a")
    assert "Explore" in headings and set(links) <= set(headings) and len(links) > 8
    assert page.ask("[...document.images].every((i) => i.naturalWidth > 0 && i.alt)")
    for width in (1280, 390):
        page.resize(width, 900)
        for scheme, paper in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(22, 24, 28)")):
            page.prefer(scheme)
            wider = page.ask("document.documentElement.scrollWidth - innerWidth")
            assert wider <= 0, f"wider than {width} pixels"
            assert page.ask("getComputedStyle(document.body).backgroundColor") == paper
    page.prefer("light")
    page.resize(1280, 1000)


def test_runs_are_sorted_filtered_searched_and_toggled(page):
    first = rows(page, "run-table")[0]
    assert {"learning rate", "status", "reason", "network", "seed", "folder"} <= set(first)
    pick(page, "[data-filter=net]", "wan")
    assert texts(page, "#run-table_info") == [
        "Showing 1 to 18 of 18 entries (filtered from 72 total entries)"
    ]
    place = texts(page, "#run-table thead th").index("time to target (s)")
    header = f"document.querySelectorAll('#run-table thead th')[{place}]"
    page.ask(f"{header}.querySelector('[role=button], .dt-column-order').click()")
    times = [row["time to target (s)"] for row in rows(page, "run-table")]
    numbers = [math.inf if text == "missed" else float(text.replace(",", "")) for text in times]
    assert numbers == sorted(numbers) and times[-1] == "missed"
    assert page.ask(f"{header}.getAttribute('aria-sort')") == "ascending"
    page.ask("document.querySelector('#run-table_wrapper input[type=search]').focus()")
    page.send("Input.insertText", text="worker 2 died")
    [failed] = rows(page, "run-table")
    assert (failed["status"], failed["reason"]) == ("failed", "worker 2 died")
    page.ask("document.querySelector('#algorithms input[value=bytegrad]').click()")
    assert rows(page, "run-table") == []
    assert "bytegrad" not in {row["algorithm"] for row in rows(page, "ranks")}
    box = "[data-table=time_to_accuracy]"
    page.ask(f"document.querySelector('{box}').scrollIntoView()")
    page.wait(f"document.querySelector('{box} .dt-container') !== null")
    of_section = f"{box} tbody td.word"
    assert "allreduce" in texts(page, of_section) and "bytegrad" not in texts(page, of_section)


@cache
def with_target(root: Path, target: float) -> pd.DataFrame:
    """The table of results, had the target been that."""
    runs = load_runs(root)
    times = [
        time_to_target(load_rows(folder), Target(value=target)) if status == "completed" else None
        for folder, status in zip(runs.folder, runs.status, strict=True)
    ]
    return results_table(
        runs.assign(time_to_accuracy_s=[math.nan if t is None else t for t in times])
    )


def table_at_target(root: Path, target: float, net: str) -> dict[str, dict[str, object]]:
    """Its rows of one network."""
    table = with_target(root, target).query("net == @net")
    return {str(row["label"]): row for row in table.to_dict("records")}


def slide(page: Browser, place: int) -> float:
    """Move the slider there; returns its target."""
    page.ask(
        f"(() => {{ const slider = document.getElementById('target'); slider.value = {place};"
        "slider.dispatchEvent(new Event('input')); })()"
    )
    return float(page.ask("document.getElementById('target-value').textContent"))


def number(text: str) -> float:
    """As a CSV has it."""
    return math.nan if text == "" else math.inf if text in ("missed", "no end") else float(text)


def near(value: float):
    return pytest.approx(value, rel=1e-12, nan_ok=True)


def test_the_slider_gives_what_python_gives_and_says_missed(study, page):
    pick(page, "#situation", "network slow_tcp, 100 Mbit/s asked")
    last = int(page.ask("document.getElementById('target').max"))
    seen_ties = 0
    for place in (0, last // 3, last // 2, last - 4, last):
        target = slide(page, place)
        expected = table_at_target(study / "runs", target, "slow_tcp")
        shown = {row["algorithm"]: row for row in rows(page, "ranks")}
        exact = {row["algorithm"]: row for row in downloaded(page, "ranks")}
        assert shown.keys() == exact.keys() == expected.keys()
        for label, row in expected.items():
            seconds = row["time_to_accuracy_s"]
            is_missed = math.isinf(seconds)
            assert exact[label]["seconds"] == ("missed" if is_missed else repr(seconds))
            assert shown[label]["seconds"] == ("missed" if is_missed else significant(seconds))
            assert shown[label]["missed"] == f"{row['missed']} of {row['runs']}"
            assert shown[label]["place"] == ("-" if is_missed else str(row["place"]))
            assert shown[label]["ties with the first"] == ("ties" if row["ties_with_first"] else "")
            ratio = exact[label]["speed-up over the best baseline"]
            if 0 < row["speedup"] < math.inf:
                assert float(ratio) == near(row["speedup"])
            seen_ties += row["ties_with_first"]
            assert number(exact[label]["seconds from"]) == near(row["low"])
            assert number(exact[label]["seconds to"]) == near(row["high"])
            if not is_missed:
                assert number(exact[label]["speed-up from"]) == near(row["speedup_low"])
                assert number(exact[label]["speed-up to"]) == near(row["speedup_high"])
    assert seen_ties and {row["seconds"] for row in shown.values()} == {"missed"}
    assert "all have missed it" in texts(page, "#target-note")[0]


def test_a_run_that_is_at_work_or_shared_a_gpu_is_no_miss_and_hides_no_other(tmp_path, chromium):
    runs = tmp_path / "runs"
    runs.mkdir()
    stopped = {"status": "failed", "reason": SIGTERM, "time_to_accuracy_s": None}
    for seed in range(3):
        write(runs, "allreduce", seed)
        write(runs, "bytegrad", seed, **(stopped if seed > 1 else {}))
    write(runs, "async", ends=False)
    write(runs, "qsgd", shared_gpu=True)
    file = tmp_path / "at_work.html"
    file.write_text(make_page(ReportData.load(runs), runs, tmp_path, "at work"))
    show(chromium, file)
    note = chromium.ask("document.getElementById('target-note').textContent")
    assert "allreduce is first" in note and "0 of 4 have missed it" in note
    shown = {row["algorithm"]: row for row in rows(chromium, "ranks")}
    assert list(shown) == ["allreduce", "bytegrad", "async", "qsgd"]  # what is not known is last
    assert shown["bytegrad"]["missed"] == "0 of 2" and shown["bytegrad"]["place"] == "1"
    assert shown["async"]["missed"] == "not ended" and shown["async"]["seconds"] == "-"
    times = {row["algorithm"]: row["time to target (s)"] for row in rows(chromium, "run-table")}
    assert times["async"] == times["qsgd"] == "-" != times["allreduce"]
    slide(chromium, int(chromium.ask("document.getElementById('target').max")))
    assert "nobody is there so far" in texts(chromium, "#target-note")[0]


def test_a_run_that_a_search_ended_has_the_time_of_its_target(tmp_path, chromium):
    for algo in ("allreduce", "bytegrad"):
        own = write_run(tmp_path / "runs" / algo, algo)
    summary = own | {"status": "ended early", "steps": None}
    (tmp_path / "runs" / "bytegrad" / "summary.json").write_text(json.dumps(summary))
    show_runs(chromium, tmp_path)
    shown = {row["algorithm"]: row for row in rows(chromium, "ranks")}
    evaluations = [asdict(row) for row in load_rows(tmp_path / "runs" / "bytegrad")]
    assert shown["bytegrad"]["seconds"] == significant(at_target(evaluations, TARGET)["time_s"])
    assert shown["bytegrad"]["missed"] == "0 of 1" and shown["bytegrad"]["place"] == "1"
    slide(chromium, int(chromium.ask("document.getElementById('target').max")))
    assert "some runs ended before others" in texts(chromium, "#target-note")[0]


@pytest.fixture
def uneven(tmp_path, chromium) -> Browser:
    """A page on which the baseline missed over wan, and another over lan_1g."""
    for seed, (net, other) in product(range(3), (("wan", "local_sgd"), ("lan_1g", "allreduce"))):
        for algo in ("allreduce", "bytegrad", "local_sgd"):
            limit = 0.98 if algo in ("bytegrad", other) else 0.5
            write_run(tmp_path / "runs" / f"{net}_{algo}_{seed}", algo, net, seed, limit=limit)
    show_runs(chromium, tmp_path)
    return chromium


def show_runs(page: Browser, folder: Path) -> None:
    """A page of folder/runs without figures, which take long to draw."""
    data = ReportData.load(folder / "runs")
    sections = {"Time": replace(time_to_accuracy.section(data), drawings={})}
    file = folder / "report.html"
    file.write_text(build._page(data, sections, folder / "runs", folder, "runs", ""))
    show(page, file)


def test_a_ratio_to_what_missed_is_no_miss(uneven):
    pick(uneven, "#situation", "network wan, 50 Mbit/s asked")
    shown = {row["algorithm"]: row for row in rows(uneven, "ranks")}
    exact = {row["algorithm"]: row for row in downloaded(uneven, "ranks")}
    for row in (shown["bytegrad"], exact["bytegrad"]):
        assert row["speed-up over the best baseline"] == "the baseline missed"
        assert row["speed-up from"] == row["speed-up to"] == "no end"
    pick(uneven, "#pair-first", "bytegrad")
    pick(uneven, "#pair-second", "allreduce")
    [pair] = [row for row in rows(uneven, "pair") if "wan" in row["situation"]]
    assert (pair["second (s)"], pair["second over first"]) == ("missed", "the second missed")
    assert pair["ratio from"] == pair["ratio to"] == "no end"
    assert uneven.console == []


def test_what_is_not_known_is_last_in_either_order(uneven):
    box = "[data-table=time_to_accuracy]"
    uneven.ask(f"document.querySelector('{box}').scrollIntoView()")
    uneven.wait(f"document.querySelector('{box} .dt-container') !== null")
    headers = texts(uneven, f"{box} thead th")
    for name, ascending, unknown in (
        ("speed-up over", ["missed", "1 (the", "1 (the", "1.41", "the b", "the b"], []),
        ("place", ["1", "1", "2", "2"], ["-", "-"]),
    ):
        place = next(k for k, header in enumerate(headers) if header.startswith(name))
        header = f"document.querySelectorAll('{box} thead th')[{place}]"
        for order in (ascending, ascending[::-1]):
            uneven.ask(f"{header}.querySelector('[role=button], .dt-column-order').click()")
            cells = texts(uneven, f"{box} tbody td:nth-child({place + 1})")
            expected = [*order, *unknown]
            assert [c[: len(e)] for c, e in zip(cells, expected, strict=True)] == expected
    script = (resources.files("experiments.report.page") / "script/tables.js").read_text()
    shares = uneven.ask(
        f"{script}['2/3 (21 to 94 %)', '2/10'].map((cell) => leadingNumber(cell, ''))"
    )
    assert shares == [2 / 3, 0.2]
    assert uneven.console == []


@pytest.mark.parametrize("lost", ["all", "the last"])
def test_a_run_whose_evaluations_are_lost_has_the_time_that_it_recorded(tmp_path, chromium, lost):
    runs = tmp_path / "runs"
    for algo in ("allreduce", "bytegrad"):
        took_s = write_run(runs / algo, algo)["time_to_accuracy_s"]
    first = load_rows(runs / "bytegrad")[:2]
    (runs / "bytegrad" / "metrics.parquet").write_bytes(b"torn")
    if lost == "the last":
        (runs / "bytegrad" / "metrics.parquet").unlink()
        (runs / "bytegrad" / "metrics.jsonl").write_text("".join(map(journal.line, first)))
    file = tmp_path / "lost.html"
    file.write_text(make_page(ReportData.load(runs), runs, tmp_path, "lost"))
    show(chromium, file)
    row = next(row for row in rows(chromium, "ranks") if row["algorithm"] == "bytegrad")
    assert (row["place"], row["seconds"]) == ("1", significant(took_s))
    slide(chromium, 0)
    row = next(row for row in rows(chromium, "ranks") if row["algorithm"] == "bytegrad")
    assert (row["place"], row["seconds"], row["missed"]) == ("-", "-", "not known")
    assert "the evaluations of some runs cannot be read" in texts(chromium, "#target-note")[0]
    assert chromium.console == []


def test_many_seeds_of_which_one_is_at_work_are_explored(tmp_path, chromium):
    """Of so many, intervals are by order: of those that have ended there is one fewer."""
    runs = tmp_path / "runs"
    runs.mkdir()
    for seed in range(7):
        write(runs, "allreduce", seed, pace_s=1 + seed / 10, ends=seed < 6)
    file = tmp_path / "seven.html"
    file.write_text(make_page(ReportData.load(runs), runs, tmp_path, "seven"))
    show(chromium, file)
    [row] = rows(chromium, "ranks")
    assert row["missed"] == "0 of 6"
    assert chromium.console == []


def test_a_target_that_another_task_lacks_leaves_that_its_own(tmp_path, chromium):
    for task, target in (("mnist5k", 0.9), ("digits", 0.8)):
        own = {"task": task, "target": Target(value=target), "target_accuracy": target}
        for algo in ("allreduce", "bytegrad"):
            write_run(tmp_path / "runs" / f"{task}_{algo}", algo, limit=target + 0.05, **own)
    show_runs(chromium, tmp_path)
    options = "[...document.querySelectorAll('#situation option')]"
    digits, mnist5k = sorted(chromium.ask(f"{options}.map((option) => option.text)"))
    pick(chromium, "#situation", mnist5k)
    hardest = int(chromium.ask("document.getElementById('target').max"))
    assert slide(chromium, hardest) > 0.9
    pick(chromium, "#situation", digits)
    assert texts(chromium, "#target-value") == ["0.8"]
    assert {row["target"] for row in rows(chromium, "pair")} == {"accuracy 0.8", "accuracy 0.9"}
    label = "document.getElementById('times').getAttribute('aria-label')"
    assert chromium.wait(label) == "seconds to accuracy 0.8, by algorithm"  # of one seed
    swatch = "getComputedStyle(document.querySelector('.swatch')).backgroundColor"
    light = chromium.ask(swatch)
    chromium.prefer("dark")
    chromium.wait(f"{swatch} !== {json.dumps(light)}")
    chromium.prefer("light")
    chromium.wait(f"{swatch} === {json.dumps(light)}")
    assert chromium.console == []


def test_no_median_is_drawn_of_what_is_not_known(tmp_path, chromium):
    for seed in range(3):
        write_run(tmp_path / "runs" / f"a{seed}", seed=seed)
        num_rows = 10 if seed == 2 else 20
        write_run(tmp_path / "runs" / f"b{seed}", "bytegrad", seed=seed, num_rows=num_rows)
    show_runs(chromium, tmp_path)
    last = int(chromium.ask("document.getElementById('target').max"))
    assert 0.94 < slide(chromium, last - 1) < 0.975  # two of three are there, one ended before
    svg = "document.querySelector('#times svg')"
    chromium.wait(f"{svg}?.textContent.includes('not known')")
    assert chromium.ask(f"{svg}.querySelectorAll('.mark-rect.role-mark path').length") == 1


def test_seeds_that_come_twice_or_are_unknown_are_no_pair(tmp_path, chromium):
    for algo, seeds in (("allreduce", (0, 1, None)), ("bytegrad", (0, 0, 1, None))):
        for k, seed in enumerate(seeds):
            folder = tmp_path / "runs" / f"{algo}{k}"
            summary = write_run(folder, algo, seed=k) | {"seed": seed}
            (folder / "summary.json").write_text(json.dumps(summary))
    show_runs(chromium, tmp_path)
    pick(chromium, "#pair-first", "bytegrad")
    pick(chromium, "#pair-second", "allreduce")
    [pair] = rows(chromium, "pair")
    assert pair["by seed"].startswith("1: ") and pair["by seed"].count(":") == 1
    told = {row["algorithm"]: row["seconds by seed"] for row in rows(chromium, "ranks")}
    assert told["bytegrad"].count("0: ") == 2 and ", -: " in told["bytegrad"]


def test_neither_a_target_at_zero_nor_an_infinite_score_takes_the_curves_away(tmp_path, chromium):
    for algo in ("allreduce", "bytegrad"):
        own = {"target": Target(metric="loss", value=0.2), "validation_accuracy": None}
        write_run(tmp_path / "runs" / algo, algo, limit=1.095, final_accuracy=None, **own)
    file = tmp_path / "runs" / "bytegrad" / "metrics.parquet"
    measured = parquet.read_table(file).to_pylist()
    next(row for row in measured if row["kind"] == "evaluation")["score"] = math.inf
    parquet.write_table(journal.table(measured), file)
    show_runs(chromium, tmp_path)
    assert "1 evaluations with infinite scores are not drawn" in texts(chromium, "#curves-note")[0]
    svg = "document.querySelector('#curves svg')"
    paths = f"[...{svg}.querySelectorAll('.mark-line path')]"
    lines = f"{paths}.map((path) => path.getAttribute('d'))"
    chromium.wait(f"{svg} !== null")
    linear = chromium.ask(lines)
    assert len(linear) == 2 and "NaN" not in "".join(linear)
    chromium.ask("document.getElementById('log-y').click()")
    assert slide(chromium, int(chromium.ask("document.getElementById('target').max"))) == 0
    chromium.wait(f"JSON.stringify({lines}) !== {json.dumps(json.dumps(linear))}")
    logarithmic = chromium.ask(lines)
    assert [d.count("L") for d in logarithmic] == [d.count("L") for d in linear]
    assert "NaN" not in "".join(logarithmic) and chromium.console == []


def test_pairs_are_compared_at_every_target_by_the_rule_of_the_tables(study, page):
    pick(page, "#situation", "network slow_tcp, 100 Mbit/s asked")
    pick(page, "#pair-second", "torch_ddp_powersgd")
    last = int(page.ask("document.getElementById('target').max"))
    seen = set()
    for place, label in product((last // 4, last // 2, last - 6, last), ("torch_ddp", "bytegrad")):
        pick(page, "#pair-first", label)
        target = slide(page, place)
        exact = {row["situation"]: row for row in downloaded(page, "pair")}
        for net, row in ((name.split()[1].rstrip(","), row) for name, row in exact.items()):
            expected = table_at_target(study / "runs", target, net)
            first, second = expected[label], expected["torch_ddp_powersgd"]
            seconds = [first["time_to_accuracy_s"], second["time_to_accuracy_s"]]
            assert [number(row["first (s)"]), number(row["second (s)"])] == seconds
            if seconds[0] < math.inf:
                low, high = ratio_interval(second["times_s"], first["times_s"], paired=True)
                assert number(row["ratio from"]) == near(low)
                assert number(row["ratio to"]) == near(high)
            seen.add(row["verdict"])
            assert row["verdict"] == verdict(first, second), (net, target, label)
    assert {"tie", "both missed", "torch_ddp_powersgd is faster"} <= seen


def verdict(first: dict[str, object], second: dict[str, object]) -> str:
    """Of two rows of a table of results."""
    missed = [row["label"] for row in (first, second) if math.isinf(row["time_to_accuracy_s"])]
    if missed:
        return "both missed" if len(missed) > 1 else f"{missed[0]} missed"
    if 1 in (first["place"], second["place"]):
        tie = first["ties_with_first"] or second["ties_with_first"]
    else:
        tie = is_tie(first["times_s"], second["times_s"], paired=True, model_error=0.0)
    faster = min(first, second, key=lambda row: row["time_to_accuracy_s"])
    return "tie" if tie else f"{faster['label']} is faster"


def test_a_run_opens_by_keyboard_with_what_it_takes_to_repeat_it(page):
    page.ask("document.querySelector('#run-table_wrapper input[type=search]').focus()")
    page.send("Input.insertText", text="is nan at step 70")
    for _ in range(40):
        page.press(*TAB)
        if page.ask("document.activeElement.dataset.run !== undefined"):
            break
    page.press(*ENTER)
    body = texts(page, "dialog[open]")[0]
    assert "diverged: the loss is nan at step 70" in body
    assert "python -m experiments +algo=local_sgd net=lan_1g" in body
    assert "c0ffee" in body and "a-host" in body and "990" in body
    assert "algo._target_" in body and "experiments.training.torch_ddp.TorchDDP" in body
    page.press(*ESCAPE)
    assert not page.ask("document.querySelector('dialog').open")


def test_two_algorithms_axes_and_hovering(page):
    pick(page, "#pair-first", "bytegrad")
    pick(page, "#pair-second", "allreduce")
    pairs = rows(page, "pair")
    assert len(pairs) == 4 and {row["target"] for row in pairs} == {"accuracy 0.9"}
    assert "bytegrad is faster than allreduce in" in texts(page, "#pair-note")[0]
    assert "bagua_algos.algorithms.bytegrad.Made" in texts(page, "#pair-difference")[0]
    assert [row["network"] for row in downloaded(page, "run-table")].count("wan") == 18
    for box in ("log-x", "log-y"):
        page.ask(f"document.getElementById('{box}').click()")
    pick(page, "#over", "MB sent by a worker")
    page.wait("document.querySelector('#curves svg').textContent.includes('MB sent by a worker')")
    mark = "document.querySelector('#times .mark-symbol path')"
    page.wait(f"{mark} !== null")
    page.ask("document.getElementById('times').scrollIntoView({block: 'center'})")
    x, y = page.ask(
        f"(() => {{ const box = {mark}.getBoundingClientRect();"
        "return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    page.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    told = page.wait("document.getElementById('vg-tooltip-element')?.innerText")
    assert "seeds (s)" in told and "median (s)" in told and "0: " in told


def test_the_word_of_a_miss_stands_beside_the_frame_where_no_mark_is(page):
    slide(page, int(page.ask("document.getElementById('target').max")))
    words = "document.querySelector('#times svg')?.querySelectorAll('.mark-text.role-mark text')"
    page.wait(f"[...({words} ?? [])].some((word) => word.textContent == 'missed')")
    frame = "document.querySelector('#times svg .role-frame path.background')"
    end = page.ask(f"{frame}.getBoundingClientRect().right")
    lefts = page.ask(f"[...{words}].map((word) => word.getBoundingClientRect().left)")
    assert min(lefts) > end


def test_a_page_without_room_is_rounded_and_shows_fewer_rows(
    study, tmp_path, chromium, monkeypatch
):
    monkeypatch.setattr(build, "MAX_BYTES", 0)
    data = ReportData.load(study / "runs")
    drawn = study / "reports" / "tradeoff"  # the same figures, which are there already
    sections = {module.TITLE: module.section(data) for module in SECTIONS}
    file = tmp_path / "report.html"
    monkeypatch.setattr(fragments, "MIN_ROWS", 5)
    monkeypatch.setattr(build, "_TABLES", 5_000)
    file.write_text(build._page(data, sections, study / "runs", drawn, "small", ""))
    assert len(file.read_text()) < 0.7 * (drawn / "report.html").stat().st_size
    watched = build._page(data, sections, study / "runs", drawn, "small", "1")
    assert ".png beside it" in file.read_text() and ".png beside it" not in watched
    show(chromium, file)
    assert "are here to 6 digits" in texts(chromium, "#explore")[0]
    assert "The first 5 of 24 rows." in texts(chromium, "[data-table=time_to_accuracy]")[0]
    target = slide(chromium, 10)
    expected = table_at_target(study / "runs", target, "dc_10g")
    for row in downloaded(chromium, "ranks"):
        seconds = expected[row["algorithm"]]["time_to_accuracy_s"]
        assert number(row["seconds"]) == pytest.approx(seconds, rel=1e-6)
    assert chromium.console == []


HOSTILE = (
    "</script></style></template><script>document.title='taken'</script>"
    "<img src=x onerror=document.title='taken'>"
)


def test_what_records_contain_stays_text(tmp_path, chromium):
    for seed in range(2):
        folder = tmp_path / "runs" / f"{HOSTILE.replace('/', '|')[:120]}{seed}"
        write_run(folder, seed=seed, reason=HOSTILE, status="diverged")
        summary = json.loads((folder / "summary.json").read_text())
        texts_ = {name: HOSTILE for name, value in summary.items() if isinstance(value, str)}
        summary |= texts_ | {"status": "diverged", "links": [{HOSTILE: HOSTILE}], "gpu": HOSTILE}
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "config.yaml").write_text(
            yaml.safe_dump({HOSTILE: HOSTILE, "algo": {HOSTILE: 1}})
        )
        environment = dict.fromkeys(["host", "cpu", "git_commit", "command", HOSTILE], HOSTILE)
        (folder / "environment.json").write_text(json.dumps(environment | {"overrides": [HOSTILE]}))
    data = ReportData.load(tmp_path / "runs")
    text = make_page(data, tmp_path / "runs", tmp_path, HOSTILE)
    assert text.count("<script") == text.count("</script>") == 1 and "<img src=x" not in text
    (tmp_path / "hostile.html").write_text(text)
    show(chromium, tmp_path / "hostile.html")
    chromium.ask("document.querySelector('button[data-run]').click()")
    body = texts(chromium, "dialog[open]")[0]
    assert body.count("document.title='taken'") > 6
    assert chromium.ask("document.title") == HOSTILE
    assert chromium.ask("document.querySelectorAll('img[src=x], body script').length") == 1
    assert chromium.console == []


def test_a_browser_that_has_something_to_complain_about_does(tmp_path, chromium):
    """Else the tests above could not fail."""
    chromium.console.clear()
    (tmp_path / "bad.html").write_text(
        '<body><img src="missing.png"><script>console.warn("a warning"); nothing();</script></body>'
    )
    chromium.open((tmp_path / "bad.html").as_uri())
    said = "\n".join(chromium.console)
    assert "a warning" in said and "nothing is not defined" in said
    assert chromium.requests[-1].endswith("missing.png")
