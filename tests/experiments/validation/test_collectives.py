from dataclasses import replace

import pytest

from experiments.commands.benches import collectives as command
from experiments.validation.collectives import (
    PATTERNS,
    STREAMS,
    Timed,
    measure,
    predicted_s,
    summary,
    table,
    theory_s,
)
from host.errors import UserError
from netsim.conditions.condition import NetworkCondition

CONDITION = NetworkCondition(rate_mbit=100, delay_ms=5, jitter_ms=0, loss_pct=0, queue_ms=400)


@pytest.mark.parametrize(
    ("workers", "pattern", "ms"),
    [
        (4, "ring", 6 * 5 + 6 / 4 * 80),  # 1 MB takes 80 ms
        (4, "halving_doubling", 4 * 5 + 6 / 4 * 80),
        (6, "ring", 10 * 5 + 10 / 6 * 80),
        (6, "halving_doubling", 6 * 5 + (6 / 4 + 2) * 80),  # two of six hand over all of theirs
    ],
)
def test_theory_counts_steps_and_bytes(workers, pattern, ms):
    assert theory_s(CONDITION, workers, pattern, 1_000_000) == pytest.approx(ms / 1000)


def test_the_table_has_a_row_a_size_and_pattern():
    timed = [
        Timed(pattern=pattern, num_bytes=size, streams=k, seconds=(0.001, 0.002 * k, 0.1))
        for k in STREAMS
        for pattern in PATTERNS
        for size in (4_000, 1_000_000)
    ]
    rows = table(CONDITION, 4, timed, "netem").splitlines()
    assert len(rows) == 2 + 4
    # Gloo's rendezvous makes six round trips of 10 ms of six delays of 5, and more of messages.
    cells = rows[2].split(" | ")
    assert cells[:3] == ["| 4", "ring", "30"]
    assert [cell.split(" ~")[0] for cell in cells[3:5]] == ["2 (1 to 100)", "4 (1 to 100)"]
    assert [int(cell.split(" ~")[1]) for cell in cells[3:5]] == [61, 61]
    assert rows[5].startswith("| 1000 | halving_doubling | 140 |")


def test_the_summary_has_the_errors_of_the_model_and_of_the_formula():
    """30.5 ms by theory, 60.7 by the model (12 delays of 5 ms and 58 us); 40 are measured, and 60
    by several streams.
    """
    timed = [
        Timed(pattern="ring", num_bytes=4000, streams=k, seconds=(0.01, median_s, 0.1))
        for k, median_s in ((1, 0.04), (4, 0.06))
    ]
    assert summary(CONDITION, 4, timed, "netem") == (
        "The cost model is off by 27 % on the mean, +52 % at worst. "
        "The closed formula is off by 36 % on the mean, -49 % at worst."
    )


def test_repeated_all_reduces_are_predicted_with_the_windows_that_they_leave():
    """8 workers swap 800 kB over 100 Mbit/s and 25 ms. Where idleness closes no window, the steady
    state has open ones: 12 delays and the bytes of 1.75 messages, with headers. Else there are
    windows too small for their messages, each of which costs most of a round trip.
    """
    far = NetworkCondition(rate_mbit=100, delay_ms=25)
    [closing_s, open_s] = [
        predicted_s(
            replace(far, tcp_slow_start_after_idle=closes),
            8,
            Timed(pattern="halving_doubling", num_bytes=1_600_000, streams=1, seconds=(0, 0, 0)),
            "netem",
        )
        for closes in (None, False)
    ]
    assert open_s == pytest.approx(12 * 0.025 + 1.75 * 1.6e6 * 1514 / 1448 * 8e-8, rel=0.01)
    assert open_s + 2 * 0.05 < closing_s < open_s + 6 * 0.05


def test_real_workers_take_at_least_what_theory_says():
    _, timed = measure(CONDITION, 2, [100_000], num_repeats=1)
    assert len(timed) == len(STREAMS) * len(PATTERNS)
    for one in timed:
        least_s, _, _ = one.seconds
        assert least_s > theory_s(CONDITION, 2, one.pattern, one.num_bytes)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["net=wan", "workers=1"], "workers must be at least 2, got 1"),
        (["net=nowhere"], "There is no network 'nowhere'"),
        (["net=wan", "--repeats", "0"], "--repeats must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_measured_is_refused(words, sentence, monkeypatch):
    monkeypatch.setattr("sys.argv", ["collectives", *words])
    with pytest.raises(UserError, match=sentence):
        command.main()
