from dataclasses import replace

import pytest

from netsim.conditions.condition import NetworkCondition
from netsim.links import guest
from netsim.links.guest import GuestError
from netsim.validation import back_ends
from netsim.validation.back_ends import ValidationOutcome, ValidationTask
from tests import app
from tests.busy_host import may_be_slowed
from tests.netsim.reports import LINK


def test_the_best_rate_and_round_trip_count_and_all_losses():
    other = replace(LINK, achieved_rate_mbit=103, achieved_rtt_ms=20.2, num_lost=16)
    best = replace(LINK, achieved_rtt_ms=20.2, num_sent=20_000, num_lost=126)
    assert back_ends.best_of([[LINK, LINK], [other, LINK]]) == [
        best,
        replace(LINK, num_sent=20_000, num_lost=220),
    ]


def test_where_nothing_was_counted_there_is_no_loss():
    lossless = replace(LINK, num_sent=None, num_lost=None)
    assert back_ends.best_of([[lossless], [lossless]]) == [lossless]


@pytest.mark.parametrize(
    ("off", "keeps"),
    [
        ({}, True),
        ({"achieved_rate_mbit": 96.9}, False),
        ({"asked_rtt_ms": 50, "achieved_rtt_ms": 51.4}, True),
        ({"asked_rtt_ms": 50, "achieved_rtt_ms": 51.6}, False),
        ({"asked_rtt_ms": 10, "achieved_rtt_ms": 10.59}, True),
        ({"asked_rtt_ms": 10, "achieved_rtt_ms": 10.61}, False),
        ({"asked_rate_mbit": None, "achieved_rate_mbit": 5000}, True),
    ],
)
def test_limits_are_three_per_cent_or_so_many_milliseconds(off, keeps):
    assert back_ends.keeps_limits(replace(LINK, **off)) is keeps


def test_tasks_and_outcomes_survive_their_way_to_another_process():
    condition = NetworkCondition(rate_mbit=10, workers={1: {"delay_ms": 2}})
    tasks = [ValidationTask(condition=condition, num_all_reduces=3)]
    [task] = back_ends.tasks_from_json(back_ends.to_json(tasks))
    assert task.condition.link(1, "up") == condition.link(1, "up")
    assert task.num_all_reduces == 3
    outcomes = [
        ValidationOutcome(links=(LINK,), all_reduce_seconds=(1.5,)),
        ValidationOutcome(refused="no"),
    ]
    assert back_ends.outcomes_from_json(back_ends.to_json(outcomes)) == outcomes


@pytest.mark.root
@may_be_slowed
def test_a_network_is_measured_or_it_is_said_why_not(scenario):
    del scenario  # it skips where the host forbids namespaces
    rate = NetworkCondition(rate_mbit=100, backend="tbf")
    tasks = [ValidationTask(condition=rate), ValidationTask(condition=replace(rate, delay_ms=1))]
    said = app.run(back_ends.to_json(tasks), module="netsim.validation.back_ends", strict=False)
    assert said.returncode == 0, said.stderr
    measured, refused = back_ends.outcomes_from_json(said.stdout)
    assert [(link.sender, link.receiver) for link in measured.links] == [
        (3, 0),
        (0, 1),
        (1, 2),
        (2, 3),
    ]
    assert all(50 < link.achieved_rate_mbit < 110 for link in measured.links)
    assert refused.refused is not None
    assert refused.refused.startswith("backend=tbf knows rates only")


def test_without_a_guest_kernel_one_is_told_how_to_get_it(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(GuestError, match="apt-get install user-mode-linux"):
        guest.run_module("timeit", [], limit_s=1)
    [outcome] = back_ends.measure_in_guest([ValidationTask(condition=NetworkCondition())])
    assert outcome.refused is not None
    assert outcome.refused.startswith("No guest can be started as linux.uml is not installed:")


def test_a_guest_kernel_that_this_processor_is_too_large_for_is_said_to_be_one(
    tmp_path, monkeypatch
):
    """The kernel is a fake, for not every processor is too large."""
    fake = tmp_path / guest.KERNEL
    fake.write_text(
        "#!/bin/sh\n"
        "echo userspace - ptrace set fp regs failed, errno = 14\n"
        "echo Kernel panic - not syncing: Attempted to kill init!\n"
    )
    for program in (fake, tmp_path / "busybox"):
        program.touch()
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(guest, "_module_files", lambda: iter(()))
    [outcome] = back_ends.measure_in_guest([ValidationTask(condition=NetworkCondition())])
    assert outcome.refused is not None
    assert outcome.refused.startswith("The guest kernel does not run on this processor")
