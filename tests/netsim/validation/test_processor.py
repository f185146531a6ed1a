import json
import subprocess
import sys

import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.validation import processor
from netsim.validation.gloo_measurements import UniformNetwork
from netsim.validation.processor import Taken, fit, lines, sent

MEASURE = """
import json
from netsim.validation import gloo
from netsim.conditions.condition import NetworkCondition
condition = NetworkCondition(rate_mbit=200, backend="switch")
operations = [("exchange", 40_000), ("exchange", 4_000_000)]
print(json.dumps(gloo.processor_seconds(condition, 2, operations, num_repeats=3, limit_s=100)))
"""


def taken(network, backend, message_s, byte_s):
    return [
        Taken(
            network=network,
            backend=backend,
            num_messages=num_messages,
            num_bytes=num_bytes,
            seconds=num_messages * message_s + num_bytes * byte_s,
        )
        for num_messages, num_bytes in ((8, 1e4), (48, 1e6), (4, 1e7))
    ]


def test_messages_and_bytes_are_told_apart():
    times = taken(UniformNetwork(), "tbf", 5e-5, 2e-10)
    assert fit(times) == pytest.approx((5e-5, 2e-10))
    assert fit(taken(UniformNetwork(), "tbf", 5e-5, 0.0)) == pytest.approx((5e-5, 0.0))


def test_what_a_host_of_two_processors_handles_follows():
    fast = UniformNetwork(rate_mbit=1000, delay_ms=1)
    times = [*taken(UniformNetwork(), "tbf", 5e-5, 2e-10), *taken(fast, "switch", 1e-4, 1e-9)]
    assert list(lines(times, 2)) == [
        "unshaped: 50 us a message, 0.20 ns a byte",
        "1000 Mbit/s, 1 ms: 100 us a message, 1.00 ns a byte",
        "local_messages_per_s: 4e+04, local_bytes_per_s: 1e+10; half of the times are within 0 %",
        "switch_messages_per_s: 2e+04, switch_bytes_per_s: 2e+09; half of the times are within 0 %",
    ]


@pytest.mark.parametrize(
    ("name", "num_messages", "num_bytes"),
    [
        ("all_reduce_mean", 48, 6 * 1_000_000),  # six hops of two segments
        ("all_to_all", 12, 3 * 1_000_000),
        ("all_gather", 24, 12 * 1_000_000),
        ("exchange", 4, 4 * 1_000_000),
    ],
)
def test_four_workers_send_so_much(name, num_messages, num_bytes):
    assert sent(NetworkCondition(), 4, name, 1_000_000) == pytest.approx((num_messages, num_bytes))


def test_every_operation_is_measured_over_every_network(monkeypatch):
    def processor_seconds(condition, num_workers, operations, **_):
        return "switch", [num_workers * size * 1e-9 for _, size in operations]

    monkeypatch.setattr(processor.gloo, "processor_seconds", processor_seconds)
    said = []
    times = list(processor.measure(said.append))
    assert len(times) == 3 * 3 * 4 * 3 and said[-1] == "200 Mbit/s, 5 ms, 8 workers"
    assert {one.backend for one in times} == {"switch"}
    assert times[0].seconds == pytest.approx(8e-6) and times[0].num_messages == 8


@pytest.mark.root
@pytest.mark.slow
def test_processor_time_grows_with_the_bytes(scenario):
    command = [sys.executable, "-c", MEASURE]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert finished.returncode == 0, finished.stderr
    backend, (small_s, large_s) = json.loads(finished.stdout)
    assert backend == "switch"
    # 8 MB in all: at least a memory's copy of each byte, and less than the time on the link.
    assert small_s < large_s and 8e6 * 1e-10 < large_s < 2 * 8e6 * 8 / 200e6
