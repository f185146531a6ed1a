"""Runs of which a page must not say something else: infinite numbers, and what is hidden."""

import math
from collections.abc import Iterator

import pytest

from experiments.report.data import ReportData
from experiments.report.page import build
from experiments.report.sections import incomplete
from experiments.tasks.target import Target
from tests.experiments.browser import Browser, browser
from tests.experiments.recorded import write_run
from tests.experiments.report.page.test_page import (
    downloaded,
    pick,
    rows,
    show,
    show_runs,
    texts,
)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as page:
        page.keep_downloads()
        yield page
        assert page.console == []


def test_only_a_time_is_missed_and_what_is_infinite_keeps_its_sign(tmp_path, chromium):
    limits = {"allreduce": 0.98, "bytegrad": 0.5, "local_sgd": 0.98}
    scores = {"allreduce": math.inf, "bytegrad": -math.inf, "local_sgd": 0.75}
    for algo, limit in limits.items():
        own = {"final_loss": scores[algo], "spread": math.inf}
        own["target"] = Target(metric="loss", value=0.2)
        write_run(tmp_path / "runs" / algo, algo, limit=limit, **own)
    show_runs(chromium, tmp_path)
    shown = {row["algorithm"]: row for row in rows(chromium, "run-table")}
    saved = {row["algorithm"]: row for row in downloaded(chromium, "run-table")}
    score, time = "final score (test)", "time to target (s)"
    assert [shown[algo][score] for algo in limits] == ["infinite", "-infinite", "0.750"]
    assert [float(saved[algo][score]) for algo in limits] == list(scores.values())
    assert {row["spread of weights"] for row in shown.values()} == {"infinite"}
    assert shown["bytegrad"][time] == saved["bytegrad"][time] == "missed"
    place = texts(chromium, "#run-table thead th").index(score)
    header = f"document.querySelectorAll('#run-table thead th')[{place}]"
    for order in (("bytegrad", "local_sgd", "allreduce"), ("allreduce", "local_sgd", "bytegrad")):
        chromium.ask(f"{header}.querySelector('[role=button], .dt-column-order').click()")
        assert tuple(row["algorithm"] for row in rows(chromium, "run-table")) == order


def test_what_did_not_complete_is_hidden_with_its_algorithm(tmp_path, chromium):
    for optim, algo in (("sgd", "allreduce"), ("sgd", "bytegrad"), ("adamw", "bytegrad")):
        folder = tmp_path / "runs" / f"{algo}_{optim}"
        write_run(folder, algo, optim=optim, status="failed", reason="it broke", num_rows=4)
    data = ReportData.load(tmp_path / "runs")
    sections = {incomplete.TITLE: incomplete.section(data)}
    file = tmp_path / "report.html"
    file.write_text(build._page(data, sections, tmp_path / "runs", tmp_path, "runs", ""))
    show(chromium, file)
    box = "[data-table=incomplete]"
    chromium.ask(f"document.querySelector('{box}').scrollIntoView()")
    chromium.wait(f"document.querySelector('{box} .dt-container') !== null")
    cells = f"{box} tbody td:nth-child"
    assert texts(chromium, f"{cells}(1)") == ["allreduce", "bytegrad", "bytegrad"]
    assert texts(chromium, f"{cells}(2)") == ["sgd", "adamw", "sgd"]
    chromium.ask("document.querySelector('#algorithms input[value=bytegrad]').click()")
    assert texts(chromium, f"{cells}(1)") == ["allreduce"]


@pytest.mark.parametrize(
    ("of_net", "told"),
    [
        ({"workers": {0: {"rate_mbit": 10}}}, ["workers.0.rate_mbit\t10"]),
        (
            {"nodes": {"size": 2, "between": {"rate_mbit": 100, "delay_ms": 10}}},
            ["nodes.size\t2", "nodes.between.rate_mbit\t100", "nodes.between.delay_ms\t10"],
        ),
        (
            {"delay_ms": 31.2, "trace": "cellular.csv"},
            [
                "Mbit/s\tas in the trace",
                "delay one way (ms)\tas in the trace",
                "trace\tcellular.csv",
            ],
        ),
        (
            {"up": {"rate_mbit": 5}, "faults": [{"worker": 1, "at_s": k} for k in range(9)]},
            ["up.rate_mbit\t5", 'faults\t[{"at_s": 0, "worker": 1}, ', "…"],
        ),
    ],
)
def test_a_run_tells_what_some_of_its_links_have_of_their_own(of_net, told, tmp_path, chromium):
    nothing = dict.fromkeys(("up", "down", "workers", "nodes", "schedule", "trace", "faults"))
    write_run(tmp_path / "runs" / "own", of_net=nothing | of_net)
    write_run(tmp_path / "runs" / "plain", "bytegrad", of_net=nothing)
    show_runs(chromium, tmp_path)
    bodies = []
    for run in range(2):
        chromium.ask(f"document.querySelector('button[data-run=\"{run}\"]').click()")
        bodies.append(texts(chromium, "dialog[open]")[0].partition("Its configuration")[0])
        chromium.ask("document.querySelector('dialog').close()")
    assert all(words in bodies[0] for words in told), bodies[0]
    assert "of their own" not in bodies[1] and "have their own" not in bodies[1]
    assert "Mbit/s\t50" in bodies[1] and len(bodies[0]) < 900


def test_one_algorithm_is_no_pair(tmp_path, chromium):
    for seed in range(3):
        write_run(tmp_path / "runs" / f"s{seed}", "bytegrad", seed=seed)
    show_runs(chromium, tmp_path)
    assert texts(chromium, "#pairs, nav a[href='#pairs']") == []


def test_a_pair_is_of_two_also_where_they_have_no_situation_in_common(tmp_path, chromium):
    for algo, net in (("allreduce", "lan_1g"), ("bytegrad", "wan")):
        write_run(tmp_path / "runs" / algo, algo, net=net)
    show_runs(chromium, tmp_path)
    chosen = [
        chromium.ask(f"document.getElementById('pair-{k}').value") for k in ("first", "second")
    ]
    assert sorted(chosen) == ["allreduce", "bytegrad"]
    [note] = texts(chromium, "#pair-note")
    assert note == "No situation has both {} and {}.".format(*chosen)
    pick(chromium, "#pair-second", chosen[0])
    assert texts(chromium, "#pair-note") == [f"Both are {chosen[0]}: choose another one."]
    assert rows(chromium, "pair") == [] and texts(chromium, "#pair-difference *") == []
