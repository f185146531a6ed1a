"""Formulas of TCP take arrays: each entry as if it were alone, whatever the others are."""

import math
from functools import partial

import numpy as np
import pytest

from netsim.timeline.tcp import short_queues, throughput, windows
from netsim.timeline.tcp.windows import Window

RATES = np.array([1e5, 1e6, 1e8, 1e9])
RTTS_S = np.array([0.02, 0.05, 0.001, 0.1])
LOSSES = np.array([0.0, 0.01, 0.0, 0.3])
QUEUES = np.array([math.inf, 1e4, 1e5, 1e9])
EXCESS = np.array([0.0, 0.5, 1.0, 0.0])

FORMULAS = {
    "lossy_window": lambda i: throughput.lossy_window_bytes("cubic", RTTS_S[i], LOSSES[i]),
    "lossy_rate": lambda i: throughput.loss_limited_rate("cubic", RATES[i], RTTS_S[i], LOSSES[i]),
    "lossy_message": lambda i: throughput.message_s("cubic", 1e6, RATES[i], RTTS_S[i], LOSSES[i]),
    "recovery_wait": lambda i: throughput.recovery_wait_s(1e6, 1e5, RTTS_S[i], LOSSES[i], 4),
    "opening_wait": lambda i: windows.opening_wait_s(
        "cubic", 1e6, Window(20_000), RATES[i], RATES[i], RTTS_S[i]
    ),
    "queued_rate": lambda i: short_queues.limited_rate(
        "cubic", RATES[i], RTTS_S[i], QUEUES[i], 1e4, EXCESS[i]
    ),
    "queued_message": lambda i: short_queues.message_s(
        "cubic", 1e6, RATES[i], RTTS_S[i], QUEUES[i], 1e4, EXCESS[i]
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("places", [[0, 1, 2, 3], [0, 2], [1, 3], [0, 0]], ids=str)
def test_each_entry_is_as_if_it_were_alone(name, places):
    formula = FORMULAS[name]
    together, alone = formula(places), [float(formula(place)) for place in places]
    np.testing.assert_allclose(np.broadcast_to(together, len(places)), alone, rtol=1e-12)


def test_without_loss_nothing_waits_for_a_repair():
    wait_s = partial(throughput.recovery_wait_s, 1e6, 1e5, RTTS_S)
    np.testing.assert_array_equal(wait_s(np.zeros(4)), np.zeros(4))
    assert (wait_s(np.full(4, 1e-6)) > 0).all()


def test_an_open_window_has_nothing_to_wait_for_and_an_endless_one_stays():
    wait_s = partial(windows.opening_wait_s, "cubic", 1e6)
    held = RATES[1] * RTTS_S[1]
    assert wait_s(Window(held), RATES[1], RATES[1], RTTS_S[1]) == 0
    assert wait_s(Window(held / 8), RATES[1], RATES[1], RTTS_S[1]) > 0
    endless = Window(1e18)
    assert windows.opened("cubic", 1e6, endless, RATES[1], RATES[1], RTTS_S[1]) is endless
    grown = windows.opened("cubic", 1e6, Window(20_000), RATES[1], RATES[1], RTTS_S[1])
    assert grown.num_bytes > 20_000
