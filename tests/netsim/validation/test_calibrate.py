from dataclasses import replace

import pytest
import yaml

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
    message_s=1e-4,
    bytes_per_s=1e9,
    local_bytes_per_s=2e9,
    switch_bytes_per_s=4e8,
    switch_message_s=3e-4,
    straggling_bytes=2e5,
)


def measured(transport: Transport) -> list[Measurement]:
    """What would be measured if the model were the truth."""
    names = [(name, size) for name in gloo.OPERATIONS for size in SIZES]
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


def constants(transport: Transport) -> dict[str, float]:
    names = ("message_s", "local_bytes_per_s", "switch_bytes_per_s", "switch_message_s")
    names += ("straggling_bytes",)
    return {name: getattr(transport, name) for name in names}


def test_a_fit_sees_nothing_of_what_is_held_out_and_forgives_a_disturbed_measurement():
    measurements = measured(TRUTH)
    disturbed = [m if m.is_fitted else replace(m, seconds=9 * m.seconds) for m in measurements]
    disturbed[5] = replace(disturbed[5], seconds=9 * disturbed[5].seconds)
    assert constants(fit(disturbed)) == pytest.approx(constants(TRUTH), rel=0.1)


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


def test_the_command_finds_the_constants_that_made_the_measurements(tmp_path, capsys):
    gloo_measurements.write(tmp_path / "measured.csv", measured(TRUTH))
    out = tmp_path / "fitted.yaml"
    assert main(["--fit", str(tmp_path / "measured.csv"), "--out", str(out)]) == 0
    found = Transport(**yaml.safe_load(out.read_text()))
    assert constants(found) == pytest.approx(constants(TRUTH), rel=0.03)
    assert found.operation_s == pytest.approx(TRUTH.operation_s, rel=0.03)
    assert found.bytes_per_s == pytest.approx(found.local_bytes_per_s / 2, rel=0.01)
    assert "held out" in capsys.readouterr().out


def test_gloo_s_constants_are_those_of_the_committed_measurements():
    assert Transport(**yaml.safe_load((RESULTS / "gloo.yaml").read_text())) == GLOO
    found = fit(gloo_measurements.read(RESULTS / "gloo.csv"))
    assert constants(found) == pytest.approx(constants(GLOO), rel=0.05)
