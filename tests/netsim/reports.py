"""The report of a link that is nearly as it was asked for."""

from netsim.proof.proof import LinkReport

LINK = LinkReport(
    sender=2,
    receiver=3,
    asked_rate_mbit=100,
    achieved_rate_mbit=98,
    asked_rtt_ms=20,
    achieved_rtt_ms=20.5,
    asked_loss_pct=1,
    num_sent=10_000,
    num_lost=110,
)
