from netsim.proof import LinkReport
from netsim.validate import row_of


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
    row = row_of("lossy", "switch", [link(98, 10.1, 40), link(101, 10.5, 55)])
    assert row == ("| lossy | switch | -2.0 % | +0.50 of 10 ms | 95 of 10000, within 80 to 120 |")
    assert "150 of 10000, outside" in row_of("lossy", "switch", [link(1, 1, 75)] * 2)
