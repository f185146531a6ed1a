"""What one TCP connection carries: by theory, as measured, and by an independent witness."""

import json
import re
import shutil
import subprocess
import time
from dataclasses import replace

import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.conditions.presets import read_condition
from netsim.links.tcp import TcpSettings
from netsim.proof import one_connection
from netsim.proof.temporary_network import run_workers
from tests.busy_host import may_be_slowed

NUM_ATTEMPTS = 3
TCP = TcpSettings(
    congestion_control="cubic",
    wmem_max_bytes=4 << 20,
    rmem_max_bytes=32 << 20,
    slow_start_after_idle=True,
    unsent_bytes=131_072,
    max_segments=65_535,
    mtu=1500,
)


@pytest.mark.parametrize(
    ("condition", "mbit"),
    [
        (NetworkCondition(rate_mbit=100), 100 * 1448 / 1514),
        (NetworkCondition(rate_mbit=100, mtu=9000), 100 * 8948 / 9014),
        (NetworkCondition(rate_mbit=10_000, delay_ms=50), (4 << 20) * 2 / 3 * 8 / 0.1 / 1e6),
        (NetworkCondition(delay_ms=50), (4 << 20) * 2 / 3 * 8 / 0.1 / 1e6),
        (NetworkCondition(), None),
    ],
    ids=["headers", "jumbo frames", "window", "window alone", "nothing"],
)
def test_theory_is_the_least_of_all_limits(condition, mbit):
    assert one_connection.theory_mbit(condition, TCP) == (mbit and pytest.approx(mbit))


@pytest.mark.parametrize(
    ("own", "num_bytes"),
    [
        ({"wmem_max_bytes": 300_000}, 200_000),
        ({"wmem_max_bytes": 300_000, "max_segments": 1}, 200_000 * 1448 / 2304),
        ({"rmem_max_bytes": 300_000}, 150_000),
        ({"wmem_max_bytes": 1 << 30}, 16 << 20),
    ],
    ids=["sender's", "of single frames", "receiver's", "the smaller one"],
)
def test_what_is_in_flight_is_bounded_by_either_buffer(own, num_bytes):
    assert one_connection.window_bytes(replace(TCP, **own)) == pytest.approx(num_bytes)


def test_losses_limit_theory_as_the_timeline_does():
    """1,448 bytes * 8 / 50 ms * (0.4 * 3.7 / 1.2 * (0.05 / 0.001)^3)^(1/4) = 4.6 Mbit/s, or Reno's
    1,448 bytes * 8 / 50 ms * (1.5 / 0.001)^(1/2) = 9.0, which is more.
    """
    wan = NetworkCondition(rate_mbit=100, delay_ms=25, loss_pct=0.1)
    assert one_connection.theory_mbit(wan, TCP) == pytest.approx(8.97, abs=0.05)


def witness_mbit(address: str) -> float:
    """What iperf3 receives there."""
    command = ["iperf3", "-c", address, "-t", "2", "-J"]
    for _ in range(300):  # until the server listens again
        said = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)
        if "error" not in said:
            return said["end"]["sum_received"]["bits_per_second"] / 1e6
        time.sleep(0.1)
    pytest.fail(said["error"])


@pytest.mark.root
@may_be_slowed
def test_measured_it_is_what_iperf3_and_ping_see():
    if not shutil.which("iperf3") or not shutil.which("ping"):
        pytest.skip("needs iperf3 and ping")
    condition = read_condition("slow_tcp")

    def work(hub, rank: int) -> list[float] | None:
        addresses = [hub.address(r) for r in range(2)]
        mbit = one_connection.measure(condition, rank, addresses)
        if rank == one_connection.RECEIVER:
            for _ in range(NUM_ATTEMPTS):
                subprocess.run(["iperf3", "-s", "-1"], check=True, stdout=subprocess.DEVNULL)
            return [mbit]
        time.sleep(0.3)  # until the link is empty and the other one listens
        pings = subprocess.run(
            ["ping", "-c", "5", "-i", "0.2", addresses[1]], capture_output=True, text=True
        )
        [least_ms] = re.findall(r"= ([\d.]+)/", pings.stdout)
        # A busy host only slows down: the fastest of all attempts is the network's own rate.
        return [max(witness_mbit(addresses[1]) for _ in range(NUM_ATTEMPTS)), float(least_ms)]

    (iperf_mbit, rtt_ms), (measured_mbit,) = run_workers(condition, 2, work).values
    assert measured_mbit == pytest.approx(95.6, rel=0.05)
    assert iperf_mbit == pytest.approx(measured_mbit, rel=0.05)
    assert rtt_ms == pytest.approx(2, abs=1)
