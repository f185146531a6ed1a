import json

import pytest

from experiments.runs.summary import (
    Summary,
    read_summary,
    told_conditions,
    told_workers,
    with_conditions_since,
    with_workers_since,
)

ONE, TWO = Summary(algo="allreduce", workers=1), Summary(algo="allreduce", workers=2)


def test_the_number_of_workers_over_time():
    assert with_workers_since(TWO, TWO, 40).workers_over_time is None
    lost = with_workers_since(ONE, TWO, 40)
    assert told_workers(lost.workers_over_time) == "2 workers, 1 after step 40"
    back = with_workers_since(TWO, lost, 60)
    assert told_workers(back.workers_over_time) == "2 workers, 1 after step 40, 2 after step 60"
    # What was done after the checkpoint that it goes on from does not count.
    assert with_workers_since(TWO, back, 40).workers_over_time is None
    again = with_workers_since(ONE, back, 50)
    assert told_workers(again.workers_over_time) == "2 workers, 1 after step 40"


def test_a_loss_of_workers_after_the_first_step():
    lost = with_workers_since(ONE, TWO, 1)
    changes = [{"after_step": 0, "workers": 2}, {"after_step": 1, "workers": 1}]
    assert lost.workers_over_time == changes


@pytest.mark.parametrize(("now", "before"), [(2, None), (None, 2), (None, None)])
def test_a_number_of_workers_that_is_not_known_is_no_change(now, before):
    summary = Summary(algo="allreduce", workers=now)
    earlier = Summary(algo="allreduce", workers=before)
    assert with_workers_since(summary, earlier, 40) == summary


def test_a_strangers_number_of_workers_is_no_summary(tmp_path):
    record = {"algo": "allreduce", "status": "completed", "workers_over_time": [1, 2]}
    (tmp_path / "summary.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="no list of after_step and workers"):
        read_summary(tmp_path)


LAN, WAN = Summary(algo="allreduce", net="lan_1g"), Summary(algo="allreduce", net="wan")
FAST, SLOW = {"net.rate_mbit": 1000}, {"net.rate_mbit": 50}


def test_the_network_over_time():
    assert with_conditions_since(LAN, LAN, 40, (FAST, FAST)).conditions_over_time is None
    slower = with_conditions_since(WAN, LAN, 40, (FAST, SLOW))
    assert told_conditions(slower.conditions_over_time) == "lan_1g, then wan after step 40"
    back = with_conditions_since(LAN, slower, 60, (SLOW, FAST))
    told = "lan_1g, then wan after step 40, then lan_1g after step 60"
    assert told_conditions(back.conditions_over_time) == told
    on = with_conditions_since(LAN, back, 80, (FAST, FAST))
    assert on.conditions_over_time == back.conditions_over_time
    # What was done after the checkpoint that it goes on from does not count.
    assert with_conditions_since(LAN, back, 40, (FAST, FAST)).conditions_over_time is None


def test_a_network_of_the_same_name_is_told_by_its_options():
    small, jumbo = SLOW | {"net.mtu": 1500}, SLOW | {"net.mtu": 9000}
    own = with_conditions_since(WAN, WAN, 40, (small, jumbo))
    told = "net.mtu=1500, then net.mtu=9000 after step 40"
    assert told_conditions(own.conditions_over_time) == told


def test_as_many_workers_on_fewer_machines_have_another_network():
    two = Summary(algo="allreduce", net="own network, 2 hosts", hosts=2)
    one = Summary(algo="allreduce", net="own network, 1 host", hosts=1)
    moved = with_conditions_since(one, two, 40, ({}, {}))
    told = "own network, 2 hosts, then own network, 1 host after step 40"
    assert told_conditions(moved.conditions_over_time) == told


@pytest.mark.parametrize(
    "changes", [[], [1, 2], [{"after_step": 0}], [{"after_step": 5, "net": "wan", "options": {}}]]
)
def test_a_strangers_network_is_no_summary(changes, tmp_path):
    record = {"algo": "allreduce", "status": "completed", "conditions_over_time": changes}
    (tmp_path / "summary.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="no list of after_step, net and options"):
        read_summary(tmp_path)
