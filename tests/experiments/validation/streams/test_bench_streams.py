from pathlib import Path

import pytest

from experiments.commands.benches import bench_systems
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.validation.streams.bench_streams import CASES, THEIRS, rows


@pytest.mark.parametrize("case", CASES)
def test_every_case_is_a_run(case):
    plan = make_plan(compose_config(CASES[case]), Path("unused"))
    assert plan.streams == (8 if "8 streams" in case else 1)


def test_ratios_are_of_one_round():
    measured = {("wan", THEIRS): [6.0, 8.0], ("wan", "all-reduce"): [2.0, float("inf")]}
    assert rows(measured)["wan: torch DDP / all-reduce"] == [3.0, 0.0]


@pytest.mark.root
def test_what_auto_chooses_is_printed_for_each_network(monkeypatch, capsys):
    words = ["bench_systems", "auto", "--repeats", "1", "--nets", "lossy"]
    monkeypatch.setattr("sys.argv", words)
    assert bench_systems.main() == 0
    printed = capsys.readouterr().out
    (chosen,) = (line.split()[5] for line in printed.splitlines() if "streams chosen" in line)
    assert chosen in ("1", "8")
    assert "lossy: s " in printed
