import re

from netsim.conditions.condition import BACKENDS, NetworkCondition
from netsim.conditions.presets import preset_names
from netsim.proof.proof import LinkReport
from netsim.validation.back_ends import Outcome
from netsim.validation.network_table import all_reduce_row, row_of
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
    row = row_of("lossy", "switch", Outcome(links=(link(98, 10.1, 40), link(101, 10.5, 55))))
    lost = "95 of 10000, within 80 to 120"
    assert row == ("lossy", "switch", "-2.0 %", "+0.50 of 10 ms", lost)
    many = Outcome(links=(link(1, 1, 75),) * 2)
    assert row_of("lossy", "switch", many)[-1].startswith("150 of 10000, outside")


def test_a_row_says_why_something_was_not_measured():
    refused = Outcome(refused="backend=tbf knows rates only: set delay_ms to zero.")
    reason = "not measured: backend=tbf knows rates only"
    assert row_of("wan", "tbf", refused) == ("wan", "tbf", reason, "", "")
    condition = NetworkCondition(rate_mbit=100)
    assert all_reduce_row("100", "tbf", condition, refused) == ("100", "tbf", reason, "", "")


def test_all_reduces_are_held_against_theory():
    condition = NetworkCondition(rate_mbit=100, delay_ms=5)
    outcome = Outcome(all_reduce_seconds=(1.5, 1.413, 1.3), switch_load=0.1234)
    row = all_reduce_row("slow", "netem", condition, outcome)
    took = "1.413 s (1.300 to 1.500)"
    assert row == ("slow", "netem", took, "+10.0 % of 1.285 s", "12 %")


def test_the_committed_table_has_every_preset_that_can_be_measured_on_every_back_end():
    rows = re.findall(r"^\| (\w+) \| (\w+) \|", TABLE.read_text(), re.MULTILINE)
    names = [name for name in preset_names() if not name.startswith("dc_")]
    assert [row for row in rows if row[0] in names] == [(n, b) for n in names for b in BACKENDS]
