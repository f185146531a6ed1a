import re

from netsim.__main__ import main
from netsim.conditions.condition import BACKENDS, NetworkCondition
from netsim.conditions.presets import MEASURED, preset_names, read_condition, why_unmeasured
from netsim.proof.proof import LinkReport
from netsim.validation.back_ends import ValidationOutcome
from netsim.validation.network_table import all_reduce_row, condition_row, row_of
from tests.paths import ROOT

TABLE = ROOT / "results" / "validation" / "network.md"


def link(rate: float, rtt: float, lost: int) -> LinkReport:
    return LinkReport(
        sender=0,
        receiver=1,
        asked_rate_mbit=100,
        achieved_rate_mbit=rate,
        asked_rtt_ms=10,
        achieved_rtt_ms=rtt,
        asked_loss_pct=1,
        num_sent=5000,
        num_lost=lost,
    )


def test_a_row_tells_of_the_worst_link_and_of_all_losses():
    row = row_of(
        "lossy", "switch", ValidationOutcome(links=(link(98, 10.1, 40), link(101, 10.5, 55)))
    )
    lost = "95 of 10000, within 80 to 120"
    assert row == ("lossy", "switch", "-2.0 %", "+0.50 of 10 ms", lost)
    many = ValidationOutcome(links=(link(1, 1, 75),) * 2)
    assert row_of("lossy", "switch", many)[-1].startswith("150 of 10000, outside")


def test_a_row_says_why_something_was_not_measured():
    refused = ValidationOutcome(refused="backend=tbf knows rates only: set delay_ms to zero.")
    reason = "not measured: backend=tbf knows rates only"
    assert row_of("wan", "tbf", refused) == ("wan", "tbf", reason, "", "")
    condition = NetworkCondition(rate_mbit=100)
    assert all_reduce_row("100", "tbf", condition, refused) == ("100", "tbf", reason, "", "")


def test_all_reduces_are_held_against_theory():
    condition = NetworkCondition(rate_mbit=100, delay_ms=5)
    outcome = ValidationOutcome(all_reduce_seconds=(1.5, 1.413, 1.3), switch_load=0.1234)
    row = all_reduce_row("slow", "netem", condition, outcome)
    took = "1.413 s (1.300 to 1.500)"
    assert row == ("slow", "netem", took, "+10.0 % of 1.285 s", "12 %")


def rows_of(table: str) -> tuple[list[tuple[str, str]], dict[str, str]]:
    """The networks and back ends of its rows; the condition of each network when measured."""
    networks, _, rest = table.partition("Ring all-reduce")
    _, _, conditions = rest.partition("| network | condition |")
    measured = re.findall(r"^\| (\w+(?: \(stale\))?) \| (\w+) \|", networks, re.MULTILINE)
    rows = re.findall(r"^\| (\w+(?: \(stale\))?) \| (.+) \|$", conditions, re.MULTILINE)
    return measured, dict(rows)


def why_not_true(table: str) -> list[str]:
    """The networks of a table that are measured as something else, and are not marked (stale)."""
    measured, conditions = rows_of(table)
    assert list(dict.fromkeys(name for name, _ in measured)) == list(conditions)
    present = {name: condition_row(name, read_condition(name)) for name in preset_names()}
    return [
        name
        for name, condition in conditions.items()
        if not name.endswith(" (stale)") and present.get(name) != (name, condition)
    ]


def test_the_committed_table_has_its_presets_on_every_back_end_as_they_are_or_marked_stale():
    measured, conditions = rows_of(TABLE.read_text())
    assert measured == [(name, backend) for name in conditions for backend in BACKENDS]
    assert why_not_true(TABLE.read_text()) == []
    assert {name for name in conditions if not name.endswith(" (stale)")} == MEASURED


def test_a_preset_that_has_changed_since_has_to_be_marked_stale():
    table = TABLE.read_text()
    changed = table.replace("rate_mbit=100, delay_ms=25", "rate_mbit=90, delay_ms=25")
    assert changed != table
    assert why_not_true(changed) == ["wan"]
    assert why_not_true(changed.replace("| wan |", "| wan (stale) |")) == []
    gone = table.replace("| wan |", "| gone |")
    assert why_not_true(gone) == ["gone"]


def test_a_preset_that_was_not_measured_says_so():
    for name in preset_names():
        said = why_unmeasured(name)
        assert (said is None) == (name in MEASURED)
    said = "net=new is not in results/validation/network.md: no back end was measured with it"
    assert why_unmeasured("new") == said


def test_the_command_says_that_a_preset_was_not_measured(capsys):
    assert main(["probe", "net=dc_10g", "workers=2"]) == 2  # which no back end here follows
    assert "net=dc_10g is not in results/validation/network.md" in capsys.readouterr().err
