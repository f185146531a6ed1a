"""The plugin between two processes over shaped links, and the programs that measure it."""

from types import SimpleNamespace

import pytest

from bagua_net import cases, zero_copy
from bagua_net import soak as soaking
from bagua_net.bench import parse, table
from bagua_net.cases import Load, Sample, measure, parse_case, slowed_mbit
from bagua_net.soak import soak
from host.errors import Failure, UserError
from netsim.conditions.condition import NetworkCondition
from netsim.conditions.presets import read_condition
from netsim.errors import ProbeError


@pytest.mark.root
def test_every_byte_arrives_over_a_network_that_loses_some():
    condition = NetworkCondition(rate_mbit=400, delay_ms=2, loss_pct=0.5)
    assert 0 < soak(condition, 40_000_000, seed=3) < 250


@pytest.mark.root
def test_the_bench_measures_each_case_in_each_round():
    names = ("1", "4-static-slowed", "auto")
    condition = NetworkCondition(rate_mbit=500)
    load = Load(num_bytes=12 << 20, message_bytes=5 << 20, in_flight=2)
    samples = measure(condition, [parse_case(name) for name in names], 2, load)
    assert tuple(samples) == names
    assert [len(each) for each in samples.values()] == [2, 2, 2]
    mbit = {name: max(sample.mbit for sample in each) for name, each in samples.items()}
    assert 0 < mbit["1"] < 1000
    # A quarter of the message goes at a tenth of a quarter of the rate.
    assert mbit["4-static-slowed"] < 80
    assert "of 8 streams" in samples["auto"][0].choice
    lines = table(condition, samples).splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:]] == list(samples)


def test_a_choice_is_that_of_its_own_round():
    """Of a later one, in which the plugin has decided nothing, it is none."""
    sender = object.__new__(cases._Sender)
    rounds = iter([["as fast: 2 of 8 streams, congestion control unchanged"], []])
    sender.lines, sender.move = [], lambda post: sender.lines.extend(next(rounds))
    sender.channel = SimpleNamespace(recv=lambda num_bytes: b"+", sendall=lambda words: None)
    sender.plugin = SimpleNamespace(connect=lambda handle: 1, close=lambda side, comm: None)
    choices = [sender.run(parse_case("auto"), 1.0, "")["choice"] for _ in range(2)]
    assert choices == ["2 of 8 streams, congestion control unchanged", ""]


def test_a_case_of_iperf3_is_refused_at_once_where_that_is_not_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cases, "build", lambda: pytest.fail("it goes on to the network"))
    load = Load(num_bytes=1, message_bytes=1)
    with pytest.raises(UserError, match=r"The case 'iperf3-8' needs iperf3, .*: install it"):
        measure(NetworkCondition(), [parse_case("1"), parse_case("iperf3-8")], 1, load)


@pytest.mark.root
def test_both_ways_to_hand_over_bytes_are_measured():
    num_bytes = 3_000_000  # no multiple of what is handed over at once
    samples = zero_copy.measure(NetworkCondition(), 2, num_bytes)
    assert {way: len(each) for way, each in samples.items()} == {"copies": 2, "zero-copy": 2}
    assert all(one["seconds"] > 0 and one["cpu_s"] > 0 for one in samples["zero-copy"])
    assert {one["copied"] for one in samples["copies"]} == {0}
    # Between namespaces of one host the kernel copies, and every call is answered for.
    assert {one["copied"] for one in samples["zero-copy"]} == {1}
    lines = zero_copy.table(samples, num_bytes).splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:]] == ["copies", "zero-copy"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["net=wan", "streams=4"], "'streams=4' is not understood"),
        ([], "Name a network by net="),
        (["net=wan", "rounds="], "'rounds=' has no value"),
        (["net=wan", "workers=3"], "leave workers=2"),
        (["net=wan", "cases=8-fast"], "There is no case '8-fast'"),
        (["net=wan", "cases=65"], "needs 1 to 64 streams"),
        (["net=wan", "cases=iperf3-8-static"], "There is no case"),
        (["net=wan", "rounds=0"], "rounds must be at least 1"),
        (["net=wan", "message=65"], "no more than all have together"),
        (["net=wan", "message=inf"], "and message a finite number above 0"),
        (["net=wan", "in_flight=33"], "1 to 32 are in flight"),
        (["net=mars"], "There is no network 'mars'"),
    ],
)
def test_the_bench_refuses(words, reason):
    with pytest.raises(UserError, match=reason):
        parse(words)


def test_the_table_compares_with_the_first_case_and_with_the_link():
    samples = {
        "1": [Sample(mbit=mbit, cpu_s_per_gb=3) for mbit in (20, 40, 10)],
        "8": [Sample(mbit=mbit, cpu_s_per_gb=2, choice="x") for mbit in (40, 80, 50)],
    }
    lines = table(NetworkCondition(rate_mbit=100), samples).splitlines()
    assert lines[-1] == "| 8 | 50 (40 to 80) | 52.3 % | 2.00 | 2.00 | x |"


@pytest.mark.parametrize(
    ("condition", "mbit", "share"),
    [
        (read_condition("one_slow_worker"), 10 * 1448 / 1514, "100.0 %"),
        (NetworkCondition(rate_mbit=1000, mtu=9000), 1000 * 8948 / 9014, "100.0 %"),
        (NetworkCondition(down={"rate_mbit": 10}), 10 * 1448 / 1514, "100.0 %"),
        (NetworkCondition(nodes={"size": 1, "between": {"rate_mbit": 50}}), 25, "52.3 %"),
        (NetworkCondition(), 25, "-"),
    ],
)
def test_the_link_is_what_the_sender_and_the_receiver_have_between_them(condition, mbit, share):
    [*_, row] = table(condition, {"1": [Sample(mbit=mbit, cpu_s_per_gb=1)]}).splitlines()
    assert row.split(" | ")[2] == share


def test_a_stream_is_slowed_to_a_tenth_of_its_share_of_the_link():
    assert slowed_mbit(read_condition("one_slow_worker"), 8) == pytest.approx(10 / 8 / 10)
    assert slowed_mbit(NetworkCondition(down={"rate_mbit": 40}), 1) == pytest.approx(4)
    assert slowed_mbit(NetworkCondition(), 4) == pytest.approx(2.5)


@pytest.mark.parametrize("gbytes", ["inf", "nan", "0", "-1"])
def test_a_soak_of_nothing_or_without_an_end_is_refused(gbytes, monkeypatch):
    monkeypatch.setattr("sys.argv", ["soak", "net=none", f"gbytes={gbytes}"])
    monkeypatch.setattr(soaking, "soak", lambda *_: 1.0)
    with pytest.raises(UserError, match="gbytes must be a finite number"):
        soaking.main()


def test_a_byte_that_differs_is_a_failure_and_no_mistake_of_the_users(monkeypatch):
    def differs(*_):
        raise ProbeError("Message 3 of 9 bytes is not as it was sent.")

    monkeypatch.setattr("sys.argv", ["soak", "net=none", "gbytes=1"])
    monkeypatch.setattr(soaking, "soak", differs)
    with pytest.raises(Failure, match="Message 3"):
        soaking.main()
