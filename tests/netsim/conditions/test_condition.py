import math

import pytest
from hydra.utils import instantiate
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from host.errors import UserError
from netsim.conditions.condition import NetworkCondition
from netsim.conditions.faults import Fault
from netsim.conditions.link import LinkCondition
from netsim.conditions.presets import preset_names, read_condition
from tests.paths import ROOT

CONF = ROOT / "conf" / "net"


@pytest.mark.parametrize(
    "delay",
    [
        {"schedule": [{"at_s": 0, "delay_ms": 20}]},
        {"up": {"delay_ms": 20}},
        {"trace": "cellular.csv"},
    ],
)
def test_jitter_may_be_of_a_delay_that_is_given_elsewhere(delay):
    link = NetworkCondition(jitter_ms=5, **delay).link(0, "up")
    assert link.jitter_ms == 5 and link.delay_ms >= 20


@pytest.mark.parametrize(
    ("jitter_ms", "reason"),
    [(-1, "jitter_ms"), (math.nan, "jitter_ms"), (21, "21 exceeds delay_ms=20")],
)
def test_jitter_that_no_link_can_have_is_refused(jitter_ms, reason):
    with pytest.raises(ValueError, match=reason):
        NetworkCondition(jitter_ms=jitter_ms, up={"delay_ms": 20})


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_yaml_is_a_condition_and_names_every_field(path):
    config = OmegaConf.load(path)
    condition = instantiate(config)
    assert isinstance(condition, NetworkCondition)
    assert {key for key in config if not str(key).startswith("_")} == set(
        NetworkCondition.__dataclass_fields__
    )
    assert condition == read_condition(path.stem)
    header = path.read_text().splitlines()[0]
    assert header.startswith("# python -m experiments ")
    assert f"net={path.stem}" in header.split()


def test_the_named_rates():
    rates = {name: read_condition(name).rate_mbit for name in preset_names()}
    expected = {"none": None, "lan_1g": 1000, "slow_tcp": 100, "wan": 100, "dc_100g": 100_000}
    assert {name: rates[name] for name in expected} == expected


def test_a_link_is_the_same_for_all_by_default_and_its_delay_is_applied_once():
    condition = NetworkCondition(rate_mbit=100, delay_ms=5, jitter_ms=1, loss_pct=2, queue_ms=9)
    assert condition.link(3, "up") == LinkCondition(
        rate_mbit=100, delay_ms=5, jitter_ms=1, loss_pct=2, queue_ms=9
    )
    assert condition.link(3, "down") == LinkCondition(rate_mbit=100, queue_ms=9)
    path = condition.path(0, 1)
    assert (path.rate_mbit, path.delay_ms, path.loss_pct) == (100, 5, pytest.approx(2))


def test_a_worker_and_a_direction_override_what_holds_for_all():
    condition = NetworkCondition(
        rate_mbit=100,
        delay_ms=5,
        down={"rate_mbit": 200, "delay_ms": 1},
        workers={0: {"rate_mbit": 10, "up": {"delay_ms": 7}, "down": {"queue_ms": 50}}},
    )
    assert condition.link(1, "up") == LinkCondition(rate_mbit=100, delay_ms=5)
    assert condition.link(1, "down") == LinkCondition(rate_mbit=200, delay_ms=1)
    assert condition.link(0, "up") == LinkCondition(rate_mbit=10, delay_ms=7)
    assert condition.link(0, "down") == LinkCondition(rate_mbit=10, delay_ms=1, queue_ms=50)


def test_nodes_share_fast_links_and_have_a_slow_one_between_them():
    between = {"rate_mbit": 100, "delay_ms": 10}
    condition = NetworkCondition(rate_mbit=1000, nodes={"size": 2, "between": between})
    assert [condition.node(rank) for rank in range(4)] == [0, 0, 1, 1]
    assert condition.path(0, 1).rate_mbit == 1000
    assert condition.path(0, 1).delay_ms == 0
    assert condition.path(1, 2).rate_mbit == 100
    assert condition.path(1, 2).delay_ms == 10


def test_a_schedule_is_a_step_function():
    steps = [{"at_s": 5, "rate_mbit": 10}, {"at_s": 8, "delay_ms": 3}]
    condition = NetworkCondition(rate_mbit=100, schedule=steps)
    seen = {at_s: condition.link(0, "up", at_s) for at_s in (0, 4.9, 5, 7.9, 8, 99)}
    assert [link.rate_mbit for link in seen.values()] == [100, 100, 10, 10, 100, 100]
    assert [link.delay_ms for link in seen.values()] == [0, 0, 0, 0, 3, 3]
    assert [condition.next_change_s(at_s) for at_s in (0, 5, 8)] == [5, 8, None]
    assert condition.varies
    assert not NetworkCondition().varies


def test_a_fault_takes_both_directions_of_its_workers_links_down():
    fault = {"workers": [1, 2], "at_s": 5, "for_s": 2, "every_s": 10}
    condition = NetworkCondition(loss_pct=1, faults=[fault])
    for at_s, lost in ((0, 1), (5, 100), (6.9, 100), (7, 1), (15, 100), (17, 1)):
        assert condition.link(1, "up", at_s).loss_pct == lost
        assert condition.link(0, "up", at_s).loss_pct == 1
    assert condition.link(2, "down", 5).loss_pct == 100
    assert max(link.loss_pct for link in condition.all_links(3)) == 1


def test_there_is_no_outage_before_training_begins():
    fault, step = {"worker": 1, "at_s": 0, "for_s": 2}, {"at_s": 0, "rate_mbit": 5}
    condition = NetworkCondition(faults=[fault], schedule=[step])
    assert condition.path(0, 1) == condition.path(0, 1, 2) == LinkCondition(rate_mbit=5)
    assert condition.path(0, 1, 0).loss_pct == 100


SECONDS = st.integers(1, 999_999).map(lambda thousandths: thousandths / 1000)


@given(at_s=st.just(0.0) | SECONDS, for_s=SECONDS, up_s=SECONDS)
@example(at_s=5, for_s=0.3, up_s=9.7)
@example(at_s=0, for_s=0.05, up_s=0.05)
def test_a_flapping_link_is_down_from_one_change_to_the_next_and_then_up(at_s, for_s, up_s):
    every_s = for_s + up_s
    fault = Fault(workers=(1,), at_s=at_s, for_s=for_s, every_s=every_s)
    now_s = -1.0
    for index in range(100):
        change_s = fault.next_change_s(now_s)
        assert change_s is not None and change_s > now_s
        begins = index % 2 == 0
        assert change_s == pytest.approx(at_s + index // 2 * every_s + (0 if begins else for_s))
        assert fault.is_down(1, change_s) is begins
        assert fault.is_down(1, math.nextafter(change_s, -1)) is not begins
        now_s = change_s


@given(at_s=SECONDS, for_s=SECONDS)
@example(at_s=5, for_s=0.3)
def test_a_link_that_fails_once_comes_back(at_s, for_s):
    condition = NetworkCondition(faults=[{"worker": 1, "at_s": at_s, "for_s": for_s}])
    assert condition.next_change_s(0) == at_s
    end_s = condition.next_change_s(at_s)
    assert end_s == pytest.approx(at_s + for_s)
    assert condition.link(1, "up", math.nextafter(end_s, 0)).loss_pct == 100
    assert condition.link(1, "up", end_s).loss_pct == 0
    assert condition.next_change_s(end_s) is None


def test_whoever_waits_for_a_change_finds_it_later_than_now():
    flapping = [{"worker": 1, "at_s": 0, "for_s": 0.05, "every_s": 0.1}]
    assert NetworkCondition(faults=flapping).next_change_s(0.5) == 0.55


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"rate_mbit": 0}, "rate_mbit=0 is under 1"),
        ({"up": {"rate": 5}}, "up has no key 'rate': choose from rate_mbit"),
        ({"workers": {0: {"speed": 5}}}, "workers has no key 'speed'"),
        ({"workers": {-1: {}}}, "rank -1"),
        ({"workers": [5]}, "maps ranks to overrides"),
        ({"workers": {1.9: {"rate_mbit": 5}}}, "maps ranks to overrides"),
        ({"workers": {True: {"rate_mbit": 5}}}, "maps ranks to overrides"),
        ({"workers": {"1_0": {"rate_mbit": 5}}}, "maps ranks to overrides"),
        ({"workers": {"0": {"rate_mbit": 5}, 0: {"rate_mbit": 6}}}, "names a rank twice"),
        ({"workers": {0: {"jitter_ms": 3}}}, "jitter_ms=3 exceeds delay_ms=0"),
        ({"nodes": {"size": 0}}, "nodes.size is a number of workers from 1 up, not 0"),
        ({"nodes": {"size": 2, "between": {"x": 1}}}, "nodes.between has no key 'x'"),
        ({"backend": "tc"}, "no back end 'tc': choose netem, tbf, switch"),
        ({"congestion_control": "; rm"}, "is no name of an algorithm"),
        ({"schedule": [{"rate_mbit": 5}]}, "needs at_s"),
        ({"schedule": [{"at_s": 5}]}, "changes nothing"),
        ({"schedule": [{"at_s": 5, "delay_ms": 1}] * 2}, "overlap: at_s=5 follows at_s=5"),
        ({"schedule": [{"at_s": 5, "loss_pct": 101}]}, "choose 0 to 100, not 101"),
        ({"schedule": [{"at_s": 5, "delay_ms": 1}], "trace": "cellular.csv"}, "choose one"),
        ({"tcp_slow_start_after_idle": 1}, "tcp_slow_start_after_idle=1: choose true, false"),
        ({"tcp_wmem_max_kb": 15}, "tcp_wmem_max_kb=15: choose 16 to 2,147,483"),
        ({"tcp_rmem_max_kb": 2**31 / 1000}, "tcp_rmem_max_kb=2147483.648: choose 16 to"),
        ({"tcp_rmem_max_kb": True}, "tcp_rmem_max_kb has to be a finite number"),
        ({"mtu": 68}, "mtu=68: choose a whole number from 576 to 9216"),
        ({"mtu": 1500.5}, "mtu=1500.5: choose a whole number"),
        ({"mtu": True}, "mtu=True: choose a whole number"),
        ({"trace": "nowhere.csv"}, "There is no trace 'nowhere.csv'"),
        ({"trace": 5}, "trace=5 is no path"),
        ({"schedule": 5}, "schedule=5 is no list"),
        ({"schedule": {"at_s": 5, "delay_ms": 1}}, "schedule={'at_s': 5, .* is no list"),
        ({"faults": "5"}, "faults='5' is no list"),
        ({"faults": [{"worker": 0, "for_s": 1}]}, "needs at_s"),
        ({"faults": [{"at_s": 0, "for_s": 1}]}, "names one rank"),
        ({"faults": [{"worker": 0, "at_s": 0, "for_s": 0}]}, "never happens"),
        ({"faults": [{"worker": 0, "at_s": 0, "for_s": 3, "every_s": 2}]}, "never up"),
        (
            {"faults": [{"worker": 0, "at_s": 0, "for_s": 1e-5, "every_s": 2e-5}]},
            r"every every_s=2e-05 changes too often: choose at least 0\.001 s",
        ),
        ({"faults": [{"workers": [True], "at_s": 0, "for_s": 3}]}, "ranks from 0 up, not True"),
    ],
)
def test_refuses_what_no_network_can_be(values, reason):
    with pytest.raises(ValueError, match=reason):
        NetworkCondition(**values)


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        ({"workers": "{0: {rate_mbit: 10}"}, "wan and its overrides are no YAML: .* expected ','"),
        ({"delay_ms": "1: 2"}, "wan and its overrides are no YAML: mapping values"),
        ({"up": "${"}, "wan and its overrides are no YAML: "),
        ({"trace": "5"}, "trace=5 is no path"),
    ],
)
def test_an_override_that_is_none_is_refused_in_a_line(overrides, reason):
    with pytest.raises(ValueError, match=f"^{reason}") as refused:
        read_condition("wan", overrides)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", None),
        ("rate_mbit: 5", None),
        ("- 5", "mine.yaml is no network"),
        ("rat: 5", "mine.yaml has the unknown key 'rat': choose from rate_mbit, "),
        ("5: 5", "has the unknown key '5'"),
        ("defaults: [wan]", "has the unknown key 'defaults'"),
        ("3", "mine.yaml cannot be read: Invalid loaded object type: int"),
        ("a: [", "mine.yaml, line 1, is no YAML: "),
    ],
)
def test_a_file_of_ones_own_that_is_no_network_is_refused_in_a_line(
    text, reason, tmp_path, monkeypatch
):
    (tmp_path / "conf" / "net").mkdir(parents=True)
    (tmp_path / "conf" / "net" / "mine.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    if reason is None:
        assert read_condition("mine", {"delay_ms": "3"}).delay_ms == 3
        return
    with pytest.raises((ValueError, UserError), match=reason) as refused:
        read_condition("mine")
    assert "\n" not in str(refused.value)


def test_a_trace_is_named_by_a_path_of_any_kind(tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("time_s,rate_mbit,delay_ms\n0,5,1\n5,7,2\n9,0,0\n")
    assert NetworkCondition(trace=file).path(0, 1) == NetworkCondition(trace=str(file)).path(0, 1)
    assert NetworkCondition(trace=file).path(0, 1).rate_mbit == 5


@pytest.mark.parametrize(
    "values",
    [{"workers": {4: {"rate_mbit": 5}}}, {"faults": [{"worker": 4, "at_s": 0, "for_s": 1}]}],
)
def test_refuses_ranks_that_do_not_exist(values):
    condition = NetworkCondition(**values)
    condition.check_num_workers(5)
    with pytest.raises(ValueError, match="names the rank 4, and 4 workers"):
        condition.check_num_workers(4)
