from collections.abc import Sequence
from dataclasses import replace

import pytest
import yaml

from host.errors import UserError
from netsim.timeline.transport import GLOO, Transport
from netsim.validation import gloo, gloo_measurements
from netsim.validation.calibrate import (
    constants_as_yaml,
    error,
    fit,
    main,
    predicted_s,
    summary,
    table,
    untold,
)
from netsim.validation.gloo_measurements import NETWORKS, SIZES, Measurement
from tests.paths import ROOT

RESULTS = ROOT / "results" / "validation"
TRUTH = replace(
    GLOO,
    operation_s=4e-4,
    bytes_per_s=1e9,
    local_bytes_per_s=2e9,
    switch_messages_per_s=6e3,
    straggling_bytes=2e5,
)

FEW_SIZES = SIZES[1::2]
"""That tell all constants."""


def measured(transport: Transport, sizes: Sequence[int] = SIZES) -> list[Measurement]:
    """What would be measured if the model were the truth."""
    names = [(name, size) for name in gloo.OPERATIONS for size in sizes]
    measurements = [
        Measurement(
            rate_mbit=network.rate_mbit,
            delay_ms=network.delay_ms,
            is_fitted=network.is_fitted,
            backend="switch" if network.delay_ms else "tbf",
            num_processors=2,
            num_workers=4,
            name=name,
            num_bytes=num_bytes,
            seconds=1.0,
            most_seconds=2.0,
        )
        for network in NETWORKS
        for name, num_bytes in [("all_reduce_mean", 4), *names]
    ]
    return [replace(m, seconds=predicted_s(m, transport)) for m in measurements]


def few_bytes(transport: Transport, worker_counts: tuple[int, ...]) -> list[Measurement]:
    """What all-to-alls of few bytes would take if the model were the truth."""
    measurements = [
        Measurement(
            rate_mbit=None,
            delay_ms=0,
            is_fitted=True,
            backend="tbf",
            num_processors=2,
            num_workers=num_workers,
            name="all_to_all",
            num_bytes=8 * num_workers,
            seconds=1.0,
            most_seconds=2.0,
        )
        for num_workers in worker_counts
    ]
    return [replace(m, seconds=predicted_s(m, transport)) for m in measurements]


def constants(transport: Transport) -> dict[str, float]:
    names = ("local_bytes_per_s", "switch_messages_per_s", "straggling_bytes")
    return {name: getattr(transport, name) for name in names}


def test_a_fit_sees_nothing_of_what_is_held_out_and_forgives_a_disturbed_measurement():
    measurements = measured(TRUTH, FEW_SIZES)
    disturbed = [m if m.is_fitted else replace(m, seconds=9 * m.seconds) for m in measurements]
    disturbed[5] = replace(disturbed[5], seconds=9 * disturbed[5].seconds)
    assert constants(fit(disturbed)) == pytest.approx(constants(TRUTH), rel=0.1)


def test_operations_of_few_bytes_tell_what_a_message_costs_and_nothing_else():
    """Two processors handle 5,000 a second: 32 * 31 messages take 198 ms."""
    truth = replace(GLOO, local_messages_per_s=5e3, messages_per_s=2.5e3)
    [*_, of_many] = measurements = few_bytes(truth, (2, 8, 32))
    assert of_many.seconds == pytest.approx(992 / 5e3, rel=1e-3)
    found = fit(measurements)
    assert found.local_messages_per_s == pytest.approx(5e3, rel=0.02)
    assert found.messages_per_s == pytest.approx(found.local_messages_per_s / 2)
    rest = replace(found, local_messages_per_s=5e3, messages_per_s=2.5e3)
    assert rest == truth


def test_one_number_of_workers_over_one_network_tells_nothing():
    with pytest.raises(ValueError, match="of one network and one number of workers: add more"):
        fit(few_bytes(GLOO, (4,)))


def test_the_least_disturbed_round_counts_and_every_other_number_is_held_out(monkeypatch):
    rounds = iter([3.0, 9.0, 5.0, 1.0, 8.0, 7.0])

    def seconds(condition, num_workers, cases, *, num_repeats, limit_s):
        middle_s = next(rounds)
        return "tbf", [[middle_s - 1, middle_s, middle_s + 50] for _ in cases]

    monkeypatch.setattr(gloo, "seconds", seconds)
    rows = gloo_measurements.measure_messages(worker_counts=(2, 4), num_rounds=3, num_repeats=3)
    of_two = [row for row in rows if row.num_workers == 2]
    of_four = [row for row in rows if row.num_workers == 4]
    assert {(row.seconds, row.most_seconds, row.is_fitted) for row in of_two} == {(3, 8, True)}
    assert {(row.seconds, row.most_seconds, row.is_fitted) for row in of_four} == {(1, 9, False)}
    assert {(row.name, row.num_bytes) for row in of_four} == {
        ("all_to_all", 32),
        ("all_reduce_mean", 32),
    }


def test_a_fit_needs_something_to_fit():
    held_out = [m for m in measured(TRUTH) if not m.is_fitted]
    with pytest.raises(ValueError, match="None of these measurements is to be fitted"):
        fit(held_out)


def test_an_error_below_zero_is_too_fast():
    [measurement, *_] = measured(TRUTH)
    slower = replace(measurement, seconds=2 * measurement.seconds)
    assert error(measurement, TRUTH) == pytest.approx(0)
    assert error(slower, TRUTH) == pytest.approx(-0.5)
    assert "-50 %" in table([slower], TRUTH)[0]


def test_the_errors_of_each_network_are_told_apart():
    measurements = [
        m if m.is_fitted else replace(m, seconds=2 * m.seconds, most_seconds=3 * m.seconds)
        for m in measured(TRUTH)
    ]
    *networks, rounds = summary(measurements, TRUTH)
    assert len(networks) == len(NETWORKS)
    for line in networks:
        size = "50 %" if "held out" in line else "0 %"
        assert line.endswith(f"half of the errors up to {size}, nine in ten up to {size}")
    assert rounds.endswith("% between rounds")


def test_a_constant_at_the_end_of_its_range_is_told():
    assert untold(TRUTH) == []
    [line] = untold(replace(TRUTH, straggling_bytes=1e7))
    assert line == "straggling_bytes is at an end of its range: nothing measured tells it"


def test_constants_survive_as_yaml():
    assert Transport(**yaml.safe_load(constants_as_yaml(TRUTH))) == TRUTH


def test_measurements_survive_as_csv(tmp_path):
    path = tmp_path / "gloo.csv"
    measurements = [replace(m, seconds=round(m.seconds, 6)) for m in measured(TRUTH)]
    gloo_measurements.write(path, measurements)
    assert gloo_measurements.read(path) == measurements


HEADER = (
    "rate_mbit,delay_ms,is_fitted,backend,num_processors,num_workers,name,num_bytes,seconds,"
    "most_seconds"
)
ROW = ",0,True,tbf,2,4,broadcast,4,0.001,0.002"


@pytest.mark.parametrize("words", [(), ("--queues",)])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file or directory"),
        ("a,b\n1,2\n", "it has no column 'rate_mbit'"),
        (HEADER + "\n", "it has no rows"),
        (f"{HEADER}\n{ROW}\n,0,True,tbf,2", "invalid literal for int.*''"),
        (f"{HEADER}\n{ROW.replace(',4,', ',four,')}\n", "invalid literal for int.*'four'"),
        (f"{HEADER}\n{ROW.replace('0.001', '0')}\n", "seconds is 0"),
        (f"{HEADER}\n{ROW.replace('2,4', '2,1')}\n", "num_workers is 1"),
        ("\N{LATIN SMALL LETTER E WITH ACUTE}".encode("latin-1"), "can't decode byte"),
    ],
)
def test_measurements_that_are_none_are_refused_in_a_sentence(words, text, reason, tmp_path):
    path = tmp_path / "gloo.csv"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=rf"gloo\.csv cannot be read as .* \(.*{reason}.*\): give"):
        main([*words, "--fit", str(path)])


def test_the_command_finds_the_constants_that_made_the_measurements(tmp_path, capsys):
    gloo_measurements.write(tmp_path / "measured.csv", measured(TRUTH, FEW_SIZES))
    out = tmp_path / "fitted.yaml"
    assert main(["--fit", str(tmp_path / "measured.csv"), "--out", str(out)]) == 0
    found = Transport(**yaml.safe_load(out.read_text()))
    assert constants(found) == pytest.approx(constants(TRUTH), rel=0.03)
    assert found.operation_s == pytest.approx(TRUTH.operation_s, rel=0.03)
    assert found.bytes_per_s == pytest.approx(found.local_bytes_per_s / 2, rel=0.01)
    assert found.local_messages_per_s == TRUTH.local_messages_per_s  # of 4 workers alone
    assert "held out" in capsys.readouterr().out


def test_gloo_s_constants_are_those_of_the_committed_measurements():
    assert Transport(**yaml.safe_load((RESULTS / "gloo.yaml").read_text())) == GLOO
    found = fit(gloo_measurements.read(RESULTS / "gloo.csv"))
    assert constants(found) == pytest.approx(constants(GLOO), rel=0.05)
