"""Configurations drawn anew each time: each is run or refused by one sentence."""

import random

from tests.fuzz_config import TOGETHER, Fuzz, fuzz


def test_200_new_configurations(capsys):
    seed = random.SystemRandom().randrange(10**8) * TOGETHER
    faults = fuzz(seed, 200)
    assert not faults, capsys.readouterr().out  # which has the seed of each


def test_an_error_of_the_program_is_a_fault(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr("tests.fuzz_config.make_plan", broken)
    tries = Fuzz()
    faults = [tries.tried(seed) for seed in range(20)]
    assert any(fault and "ZeroDivisionError: by nothing" in fault.what for fault in faults)
