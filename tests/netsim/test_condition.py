import math
from pathlib import Path

import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from netsim.condition import FRAME_BYTES, NetworkCondition

CONF = Path(__file__).parents[2] / "conf" / "net"


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_yaml_is_a_condition(path):
    assert isinstance(instantiate(OmegaConf.load(path)), NetworkCondition)
    assert path.read_text().startswith("# python -m experiments ")
    assert f"net={path.stem}\n" in path.read_text()


def test_the_named_rates():
    rates = {path.stem: instantiate(OmegaConf.load(path)).rate_mbit for path in CONF.glob("*.yaml")}
    expected = {"none": None, "lan_1g": 1000, "slow_tcp": 100}
    assert {name: rates[name] for name in expected} == expected


@pytest.mark.parametrize("name", ["rate_mbit", "delay_ms", "jitter_ms", "loss_pct", "queue_ms"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, "fast", True])
def test_refuses_what_is_no_quantity(name, value):
    with pytest.raises(ValueError, match=rf"^{name} has to be .* not {value!r}\.$"):
        NetworkCondition(**{name: value})


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"rate_mbit": 0}, "rate_mbit=0 is under 1, where a single burst lasts"),
        ({"rate_mbit": 34_001}, "rate_mbit=34001 is over 34000 .* 32 bits of bytes per second"),
        ({"delay_ms": 300_000}, "delay_ms=300000 is over 270000 .* 32 bits of 64 ns"),
        ({"jitter_ms": 2}, "jitter_ms=2 exceeds delay_ms=0"),
        ({"delay_ms": 1, "jitter_ms": 2}, "jitter_ms=2 exceeds delay_ms=1"),
        ({"loss_pct": 101}, "choose 0 to 100, not 101"),
        ({"rate_mbit": 34_000, "queue_ms": 2000}, "queue_ms=2000 .* length in 32 bits"),
    ],
)
def test_refuses_what_the_kernel_cannot_do(values, reason):
    with pytest.raises(ValueError, match=reason):
        NetworkCondition(**values)


def test_a_rate_alone_needs_no_netem():
    assert not NetworkCondition(rate_mbit=100).needs_netem
    assert NetworkCondition(delay_ms=1).needs_netem
    assert NetworkCondition(loss_pct=0.1).needs_netem


@pytest.mark.parametrize("rate_mbit", [None, 1, 10, 100, 1000, 34_000])
def test_a_burst_holds_a_gso_packet_and_with_it_two_frames(rate_mbit):
    assert NetworkCondition(rate_mbit=rate_mbit).burst_bytes >= 64 * 1024 > 2 * FRAME_BYTES


def test_lengths_in_bytes():
    condition = NetworkCondition(rate_mbit=1000, queue_ms=100)
    assert condition.rate_bytes_per_s == 125_000_000
    assert condition.burst_bytes == 500_000
    assert condition.queue_bytes == 12_500_000
