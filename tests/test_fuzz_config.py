"""Configurations that nobody has thought of: each is run or refused by one sentence."""

from tests.fuzz_config import Fuzz, fuzz


def test_120_configurations(capsys):
    """The same ones each time; `.ci/run` tries new ones, whose faults are no fault of a change."""
    assert not fuzz(20_000, 120), capsys.readouterr().out  # which has the seed of each


def test_an_error_of_the_program_is_a_fault(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("tests.fuzz_config.make_plan", broken)
    tries = Fuzz()
    faults = [tries.tried(seed) for seed in range(20)]
    assert any(fault and "ZeroDivisionError: by nothing" in fault.what for fault in faults)
