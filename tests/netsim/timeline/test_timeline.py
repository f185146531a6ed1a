import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.errors import UserError
from netsim.conditions.condition import NetworkCondition
from netsim.conditions.link import wire_per_payload
from netsim.timeline import changes
from netsim.timeline.compute import (
    ComputeTimes,
    Lognormal,
    Trace,
    even_buckets,
)
from netsim.timeline.cost_model import CostModel
from netsim.timeline.timeline import Timeline, TimelineJob
from netsim.timeline.transport import Transport
from tests.netsim.event_oracle import Collective, Workers
from tests.netsim.operations import Operation, of_all

WIRE_PER_PAYLOAD = wire_per_payload()

BARE = Transport(
    operation_s=0,
    message_s=0,
    bytes_per_s=1e30,
    messages_per_s=1e30,
    local_messages_per_s=1e30,
    switch_messages_per_s=1e30,
    switch_nap_s=0,
    num_segments=1,
    rendezvous=False,
    straggling_bytes=0,
    socket_bytes=1.2e6,
    initial_window_bytes=1e12,
    segment_bytes=1e30,
    max_window_bytes=1e30,
)
NETWORK = NetworkCondition(rate_mbit=100, delay_ms=5)
SECOND = 12_500_000 / WIRE_PER_PAYLOAD
"""Payload bytes that 100 Mbit/s carry in a second."""

COMPUTE = ComputeTimes(
    forward_s=0.1, backward_s=0.2, bucket_ready_s=even_buckets(0.2, 4), optimizer_s=0.01
)


def exchange(seconds: float, num_workers: int = 4, shift: int = 1) -> Operation:
    return of_all("exchange", round(seconds * SECOND), num_workers, shift)


def all_to_all(seconds: float, num_workers: int = 4) -> Operation:
    """Occupies every link for so long."""
    num_bytes = round(seconds * SECOND * num_workers / (num_workers - 1))
    return of_all("all_to_all", num_bytes, num_workers)


def timeline_of(
    num_workers: int = 4,
    condition: NetworkCondition = NETWORK,
    compute: ComputeTimes = COMPUTE,
    transport: Transport = BARE,
    **options,
) -> Timeline:
    return Timeline(CostModel(condition, num_workers, transport), compute, **options)


def factors_of(*factors: float) -> ComputeTimes:
    return ComputeTimes(
        forward_s=0.1,
        backward_s=0.2,
        bucket_ready_s=even_buckets(0.2, 4),
        optimizer_s=0.01,
        variation=Trace(steps=[list(factors)]),
    )


def run(timeline: Timeline, moment: str, *work: Operation) -> np.ndarray:
    timeline.replay(
        [TimelineJob(moment=moment, bucket=0 if moment == "bucket_ready" else None, work=work)]
    )  # pyright: ignore
    return timeline.time_s


def test_compute_alone_takes_its_own_time():
    timeline = timeline_of(compute=factors_of(1, 2, 1, 3))
    timeline.replay([])
    assert timeline.time_s == pytest.approx([0.31, 0.62, 0.31, 0.93])
    assert timeline.exposed_communication_s.tolist() == [0] * 4


@pytest.mark.parametrize(
    ("moment", "exposed_s"),
    [
        ("forward", 0.1),
        ("overflow_check", 0.4),
        ("bucket_ready", 0.25),
        ("backward_end", 0.4),
        ("step_begin", 0.4),
        ("step_end", 0.4),
    ],
)
def test_compute_hides_what_it_can(moment, exposed_s):
    timeline = timeline_of(2)
    time_s = run(timeline, moment, exchange(0.395, 2))
    assert time_s == pytest.approx([0.31 + exposed_s] * 2)
    assert timeline.exposed_communication_s == pytest.approx([exposed_s] * 2)


def test_no_bucket_is_ready_before_the_overflow_check():
    work = (exchange(0.395, 2),)
    check = TimelineJob(moment="overflow_check", work=work)
    buckets = [TimelineJob(moment="bucket_ready", bucket=k, work=work) for k in range(2)]
    timeline = timeline_of(2)
    timeline.replay([check, *buckets])  # one bucket a lane, which share the link
    exposed_s = 0.4 + 2 * 0.395 + 0.005
    assert timeline.time_s == pytest.approx([0.31 + exposed_s] * 2)
    assert timeline.exposed_communication_s == pytest.approx([exposed_s] * 2)


def test_all_wait_for_a_straggler_in_a_collective_and_only_neighbours_in_an_exchange():
    compute = factors_of(1, 1, 3, 1)
    together = run(timeline_of(compute=compute), "backward_end", all_to_all(0.095))
    assert together == pytest.approx([0.9 + 0.1 + 0.01] * 2 + [0.9 + 0.1 + 0.03] + [1.01])
    beside = run(timeline_of(compute=compute), "backward_end", exchange(0.095))
    # Worker 3 receives from the straggler; 2, which is late itself, finds its message there.
    assert beside == pytest.approx([0.41, 0.41, 0.93, 0.9 + 0.1 + 0.01])


def test_with_a_rendezvous_a_sender_waits_until_the_receiver_takes_its_message():
    transport = replace(BARE, rendezvous=True, socket_bytes=0.02 * SECOND)
    timeline = timeline_of(compute=factors_of(1, 1, 3, 1), transport=transport)
    time_s = run(timeline, "backward_end", exchange(0.095))
    word_s = 0.005
    expected = [
        0.3 + word_s + 0.1 + 0.01,
        0.9 + word_s + 0.075 + 0.01,  # its message to worker 2: all but what the socket holds
        0.9 + word_s + 0.1 + 0.03,
        0.9 + 0.1 + 0.01,  # its word came long ago
    ]
    assert time_s == pytest.approx(expected, abs=1e-6)


def collectives(num_bytes: int, size: int, delay_s: float) -> tuple[Collective, Collective]:
    """An all-to-all and an all-reduce."""
    chunks_s = (size - 1) * num_bytes / size / SECOND
    return (
        Collective(chunks_s + delay_s, chunks_s, delay_s),
        Collective(2 * (chunks_s + (size - 1) * delay_s), 2 * chunks_s, delay_s),
    )


@settings(max_examples=60)
@given(
    factors=st.lists(st.floats(0.5, 3), min_size=2, max_size=4),
    megabytes=st.lists(st.floats(0.01, 4), min_size=1, max_size=8),
    kernel_s=st.floats(0, 0.05),
    delay_ms=st.floats(0, 100),
    num_lanes=st.integers(1, 3),
    num_steps=st.integers(1, 3),
)
def test_overlap_and_stragglers_go_as_event_by_event(
    factors, megabytes, kernel_s, delay_ms, num_lanes, num_steps
):
    """Every bucket: a kernel, an all-to-all, a kernel and an all-reduce."""
    size, num_buckets = len(factors), len(megabytes)
    ready_s = even_buckets(0.2, num_buckets)
    condition = NetworkCondition(rate_mbit=100, delay_ms=delay_ms)
    compute = ComputeTimes(
        forward_s=0.1,
        backward_s=0.2,
        bucket_ready_s=ready_s,
        variation=Trace(steps=[factors] * num_steps),
    )
    timeline = timeline_of(size, condition, compute, num_lanes=num_lanes)
    oracle = Workers(factors, 0.1, 0.2)
    begin_s = [0.0] * size
    for _ in range(num_steps):
        jobs, expected = [], []
        for bucket, megabyte in enumerate(megabytes):
            num_bytes = round(megabyte * 1e6)
            names = ("all_to_all", "all_reduce_mean")
            first, second = (of_all(name, num_bytes, size) for name in names)
            work = [kernel_s, first, kernel_s, second]
            jobs.append(TimelineJob(moment="bucket_ready", bucket=bucket, work=work))
            pairs, ring = collectives(num_bytes, size, delay_ms / 1000)
            oracle_work = [kernel_s, pairs, kernel_s, ring]
            expected.append((ready_s[bucket], bucket % num_lanes, oracle_work))
        timeline.replay(jobs)
        begin_s = oracle.step(begin_s, expected, num_lanes)
        assert timeline.time_s == pytest.approx(begin_s)


def two_buckets(work: Operation) -> list[TimelineJob]:
    return [TimelineJob(moment="bucket_ready", bucket=bucket, work=[work]) for bucket in (0, 1)]


def test_two_lanes_share_the_bandwidth_and_hide_the_latency():
    compute = ComputeTimes(forward_s=0, backward_s=0, bucket_ready_s=(0, 0))
    for delay_ms, busy_s, one_lane_s, two_lanes_s in ((0, 0.1, 0.2, 0.2), (90, 0.01, 0.2, 0.11)):
        condition = NetworkCondition(rate_mbit=100, delay_ms=delay_ms)
        for num_lanes, expected_s in ((1, one_lane_s), (2, two_lanes_s)):
            timeline = timeline_of(4, condition, compute, num_lanes=num_lanes)
            timeline.replay(two_buckets(all_to_all(busy_s)))
            assert timeline.time_s == pytest.approx([expected_s] * 4, rel=1e-4)


@pytest.mark.parametrize(("host_wait", "step_s"), [(0.0, 0.31), (0.1, 0.31), (0.5, 0.415)])
def test_what_communicates_waits_for_a_processor_as_what_computes_does(host_wait, step_s):
    """0.3 s of forward and backward hide an exchange of 0.255 s, unless this waits for a processor
    for half of them; then the optimizer comes. A short operation on the other lane adds nothing,
    nor does the step before.
    """
    model = CostModel(NETWORK, 2, replace(BARE, local_bytes_per_s=1e30), backend="netem")
    timeline = Timeline(model, COMPUTE, host_load=0.0, host_wait=host_wait)
    long, short = (exchange(seconds, 2) for seconds in (0.25, 0.001))
    for step in (1, 2):
        timeline.replay(
            [
                TimelineJob(moment="forward", work=[long]),
                TimelineJob(moment="bucket_ready", bucket=1, work=[short]),
            ]
        )
        assert timeline.time_s == pytest.approx([step * step_s] * 2, abs=1e-3)


@pytest.mark.parametrize(
    ("backend", "host_load", "host_wait", "step_s"),
    [
        ("netem", 0.0, 0.0, 0.31),  # all is hidden by compute
        ("netem", 1.0, 0.0, 0.1 + 0.31 + 0.06),  # processors do one after the other
        ("netem", 0.0, 0.5, 0.285 + 0.01 + 0.5 * (0.3 + 0.06 + 0.1)),
        ("switch", 1.0, 0.0, 0.1 + 0.31 + 0.06),
        ("switch", 0.0, 0.5, 0.285 + 0.01 + 0.5 * (0.3 + 0.06)),  # it has carried the bytes
    ],
)
def test_kernels_and_bytes_keep_processors_busy_and_wait_for_them(
    backend, host_load, host_wait, step_s
):
    """Two kernels of 30 ms, one of them on the lane of an exchange of 0.255 s. Moving its bytes
    takes all processors of the host for 0.1 s.
    """
    operation = exchange(0.25, 2)
    bytes_per_s = 2 * operation.num_bytes / 0.1
    transport = replace(BARE, local_bytes_per_s=bytes_per_s, switch_bytes_per_s=bytes_per_s)
    model = CostModel(NETWORK, 2, transport, backend=backend)
    timeline = Timeline(model, COMPUTE, host_load=host_load, host_wait=host_wait)
    for step in (1, 2):
        timeline.replay(
            [
                TimelineJob(moment="forward", work=[operation, 0.03]),
                TimelineJob(moment="bucket_ready", bucket=1, work=[0.03]),
            ]
        )
        assert timeline.time_s == pytest.approx([step * step_s] * 2, abs=1e-3)


@pytest.mark.parametrize(
    ("host_load", "host_wait", "steps_s"),
    [(1.0, 0.0, [0.41, 0.72]), (0.0, 0.5, [0.265 + 0.5 * 0.4, 0.275 + 0.5 * 0.7])],
)
def test_a_worker_of_twice_the_compute_keeps_processors_busy_for_twice_as_long(
    host_load, host_wait, steps_s
):
    operation = exchange(0.25, 2)
    transport = replace(BARE, local_bytes_per_s=2 * operation.num_bytes / 0.1)
    model = CostModel(NETWORK, 2, transport, backend="netem")
    timeline = Timeline(model, factors_of(1, 2), host_load=host_load, host_wait=host_wait)
    timeline.replay([TimelineJob(moment="forward", work=[operation])])
    assert timeline.time_s == pytest.approx(steps_s, abs=1e-3)
    assert timeline.num_steps == 1


@pytest.mark.parametrize(("host_load", "step_s"), [(1.0, 0.56), (0.5, 0.405)])
def test_workers_who_share_a_host_do_not_compute_and_move_bytes_at_the_same_time(host_load, step_s):
    condition, transport = NetworkCondition(), replace(BARE, switch_bytes_per_s=4e6)
    model = CostModel(condition, 4, transport, backend="switch")
    timeline = Timeline(model, COMPUTE, host_load=host_load)
    quarter = of_all("exchange", 250_000, 4, 1)  # 1 MB by all together takes 0.25 s
    for _ in range(2):
        timeline.replay([TimelineJob(moment="forward", work=[quarter])])
    assert timeline.time_s == pytest.approx([2 * step_s] * 4)
    own_hosts = timeline_of(condition=condition)
    own_hosts.replay([TimelineJob(moment="forward", work=[quarter])])
    assert own_hosts.time_s == pytest.approx([0.31] * 4)


def test_what_is_done_before_training_is_waited_for_and_not_exposed():
    timeline = timeline_of(compute=factors_of(1, 1, 1, 2))
    timeline.replay([])
    timeline.on_operation(all_to_all(0.195))
    timeline.on_operation(all_to_all(0.095))
    assert timeline.time_s == pytest.approx([0.62 + 0.2 + 0.1] * 4)
    assert timeline.exposed_communication_s.tolist() == [0] * 4


def test_a_background_round_holds_nobody_up():
    timeline = timeline_of(2)
    timeline.begin_step()
    background = timeline.begin_background()
    timeline.on_operation(exchange(0.6, 2))
    timeline.end_step()
    assert timeline.time_s == pytest.approx([0.31] * 2)
    assert not timeline.is_done(background).any()
    timeline.replay([])
    assert timeline.time_s == pytest.approx([0.62] * 2)
    assert timeline.is_done(background).all()


def test_a_round_is_over_at_each_worker_s_own_clock():
    timeline = timeline_of(2, compute=factors_of(1, 3))
    background = timeline.begin_background()
    timeline.on_operation(exchange(0.5, 2))
    timeline.replay([])
    assert timeline.is_done(background).tolist() == [False, True]
    timeline.wait(background)
    assert timeline.is_done(background).all()
    assert timeline.time_s[1] == pytest.approx(0.93)


def test_training_and_a_background_round_take_bandwidth_from_each_other():
    alone, beside = timeline_of(2), timeline_of(2)
    background = beside.begin_background()
    beside.on_operation(exchange(5, 2))
    for timeline in (alone, beside):
        run(timeline, "backward_end", exchange(0.1, 2))
    assert beside.time_s - alone.time_s == pytest.approx([0.1] * 2)
    beside.wait(background)
    assert beside.time_s == pytest.approx([5 + 0.1 + 0.005] * 2)


def test_what_started_first_does_not_keep_a_link_for_itself():
    """The second is through at 0.2 s, the first, which had 0.3 s left then, at 0.5 s."""
    compute = ComputeTimes(forward_s=0, backward_s=0, bucket_ready_s=(0, 0))
    timeline = timeline_of(2, compute=compute, records_events=True)
    jobs = [
        TimelineJob(moment="bucket_ready", bucket=bucket, work=[exchange(seconds, 2)])
        for bucket, seconds in enumerate((0.4, 0.1))
    ]
    timeline.replay(jobs)
    ends_s = {event.lane: event.end_s for event in timeline.events if event.name == "exchange"}
    assert ends_s == {0: pytest.approx(0.505), 1: pytest.approx(0.205)}


def test_what_waits_for_a_slow_link_waits_as_long_as_it_lasts():
    """At 100 Mbit/s for 1 s, then at 50: half is there at 1 s."""
    condition = NetworkCondition(rate_mbit=100, schedule=[{"at_s": 1, "rate_mbit": 50}])
    timeline = timeline_of(2, condition)
    timeline.on_operation(all_to_all(2, 2))
    assert timeline.time_s == pytest.approx([3, 3], rel=1e-4)
    exchanged = timeline_of(2, condition)
    exchanged.on_operation(exchange(2, 2))
    assert exchanged.time_s == pytest.approx([3, 3], rel=1e-4)


def test_an_outage_is_waited_for():
    faults = [{"worker": 1, "at_s": 0.5, "for_s": 10}]
    timeline = timeline_of(2, NetworkCondition(rate_mbit=100, faults=faults))
    timeline.on_operation(all_to_all(1, 2))
    assert timeline.time_s == pytest.approx([11, 11], rel=1e-4)


def test_a_link_that_never_comes_back_is_told():
    timeline = timeline_of(2, NetworkCondition(loss_pct=100))
    with pytest.raises(UserError, match="exchange never ends: a link that it needs is down for"):
        timeline.on_operation(exchange(1, 2))


def test_links_that_are_never_up_at_once_are_told(monkeypatch):
    """One fails in the first half of each second, the other in the second."""
    monkeypatch.setattr(changes, "MAX_CHANGES", 50)
    faults = [
        {"worker": 0, "at_s": 0.0, "for_s": 0.5, "every_s": 1.0},
        {"worker": 1, "at_s": 0.5, "for_s": 0.5, "every_s": 1.0},
    ]
    timeline = timeline_of(2, NetworkCondition(rate_mbit=100, faults=faults))
    with pytest.raises(
        UserError, match=r"does not get through: .* changed 50 times .* or never up at once"
    ):
        timeline.on_operation(all_to_all(1, 2))


@pytest.mark.parametrize("every_s", [0.01, 0.2])
def test_an_operation_that_too_many_changes_come_upon_is_told(every_s, monkeypatch):
    """Of 0.95 s, and every second half of a period, beginning with the first, the link is down."""
    monkeypatch.setattr(changes, "MAX_CHANGES", 50)
    faults = [{"worker": 0, "at_s": 0.0, "for_s": every_s / 2, "every_s": every_s}]
    timeline = timeline_of(2, NetworkCondition(rate_mbit=100, faults=faults))
    if every_s == 0.2:
        timeline.on_operation(all_to_all(0.95, 2))
        assert timeline.time_s == pytest.approx([1.95, 1.95], rel=1e-4)
        return
    with pytest.raises(UserError, match=r"all_to_all does not get through: .* changed 50 times"):
        timeline.on_operation(all_to_all(0.95, 2))


def test_subgroups_do_not_wait_for_each_other():
    timeline = timeline_of(4, compute=factors_of(1, 1, 2, 2))
    num_bytes = round(0.1 * SECOND)
    pairs = [
        Operation(name="all_reduce_mean", num_bytes=num_bytes, ranks=ranks)
        for ranks in ((0, 1), (2, 3))
    ]
    time_s = run(timeline, "backward_end", *pairs)
    assert time_s[:2] == pytest.approx([0.3 + 0.11 + 0.01] * 2, rel=1e-3)
    assert time_s[2:] == pytest.approx([0.6 + 0.11 + 0.02] * 2, rel=1e-3)
    assert timeline.bytes_sent == pytest.approx([num_bytes * WIRE_PER_PAYLOAD] * 4)


def test_in_an_exchange_of_a_subgroup_peers_are_workers_of_the_whole():
    operation = Operation(name="exchange", num_bytes=1000, ranks=(1, 2, 3), peers=(3, 2, 1))
    timeline = timeline_of(4)
    timeline.on_operation(operation)
    assert timeline.time_s == pytest.approx([0, 0.00508, 0, 0.00508], abs=1e-4)
    assert (timeline.bytes_sent > 0).tolist() == [False, True, False, True]


def test_live_calls_and_a_replay_are_the_same():
    jobs = [
        TimelineJob(moment="forward", work=[exchange(0.1)]),
        TimelineJob(moment="bucket_ready", bucket=0, work=[0.01, all_to_all(0.2), 0.01]),
        TimelineJob(moment="bucket_ready", bucket=1, work=[all_to_all(0.1)]),
        TimelineJob(moment="backward_end", work=[of_all("all_gather", 1000, 4)]),
        TimelineJob(moment="step_end", work=[exchange(0.1)]),
    ]
    replayed, live = (timeline_of(compute=factors_of(1, 2, 3, 4)) for _ in range(2))
    replayed.replay(jobs)
    live.begin_step()
    for job in jobs:
        live.begin_job(job.moment, job.bucket)
        for work in job.work:
            live.kernel(work) if isinstance(work, float) else live.on_operation(work)
    live.end_step()
    assert live.time_s.tolist() == replayed.time_s.tolist()
    assert live.bytes_sent.tolist() == replayed.bytes_sent.tolist()


def test_work_that_is_done_at_once_is_that_of_its_parts():
    work = [0.01, all_to_all(0.2), 1, exchange(0.1)]
    at_once, in_parts = (timeline_of(compute=factors_of(1, 2, 3, 4)) for _ in range(2))
    for timeline in (at_once, in_parts):
        timeline.begin_step()
        timeline.begin_job("backward_end")
    at_once.do(work)
    in_parts.kernel(0.01)
    in_parts.on_operation(all_to_all(0.2))
    in_parts.kernel(1)
    in_parts.on_operation(exchange(0.1))
    for timeline in (at_once, in_parts):
        timeline.end_step()
    assert at_once.time_s.tolist() == in_parts.time_s.tolist()


def test_at_a_barrier_all_wait_for_the_slowest_and_nothing_is_exposed():
    timeline = timeline_of(compute=factors_of(1, 2, 1, 3))
    timeline.replay([])
    timeline.barrier()
    assert timeline.time_s == pytest.approx([0.93] * 4)
    assert timeline.exposed_communication_s.tolist() == [0] * 4
    timeline.on_operation(all_to_all(0.1))
    assert timeline.time_s == pytest.approx([0.93 + 0.105] * 4)


def test_an_operation_after_a_barrier_waits_for_it():
    """Also one of those who came to it early."""
    timeline = timeline_of(compute=factors_of(1, 1, 1, 3))
    timeline.replay([])
    timeline.barrier()
    num_bytes = round(0.1 * SECOND)
    timeline.on_operation(Operation(name="broadcast", num_bytes=num_bytes, ranks=(0, 1)))
    assert timeline.time_s == pytest.approx([0.93 + 0.105] * 2 + [0.93] * 2, abs=1e-4)


def test_events_tell_who_did_what_when():
    timeline = timeline_of(2, records_events=True)
    run(timeline, "bucket_ready", exchange(0.01, 2))
    spans = {(e.worker, e.lane, e.name): (e.start_s, e.end_s) for e in timeline.events}
    assert set(spans) == {
        (worker, lane, name)
        for worker in (0, 1)
        for lane, name in ((-1, "forward"), (-1, "backward"), (-1, "optimizer"), (0, "exchange"))
    }
    assert spans[1, -1, "backward"] == pytest.approx((0.1, 0.3))
    assert spans[1, 0, "exchange"] == pytest.approx((0.15, 0.165), abs=1e-5)
    assert all(start_s <= end_s for start_s, end_s in spans.values())


def test_who_waits_for_communication_is_shown_to_wait():
    timeline = timeline_of(2, records_events=True)
    run(timeline, "bucket_ready", exchange(0.5, 2))
    waits = [event for event in timeline.events if event.name == "wait"]
    assert sorted(event.worker for event in waits) == [0, 1]
    backward_end_s = max(e.end_s for e in timeline.events if e.name == "backward")
    optimizer_s = min(e.start_s for e in timeline.events if e.name == "optimizer")
    for wait in waits:
        assert (wait.start_s, wait.end_s) == pytest.approx((backward_end_s, optimizer_s))
    waited_s = sum(event.end_s - event.start_s for event in waits)
    assert waited_s == pytest.approx(float(timeline.exposed_communication_s.sum()))


def test_training_over_a_cold_connection_starts_slowly():
    transport = replace(BARE, initial_window_bytes=14_480)
    timeline = timeline_of(2, NetworkCondition(rate_mbit=100, delay_ms=50), transport=transport)
    durations = []
    for _ in range(3):
        before_s = timeline.time_s
        timeline.on_operation(exchange(0.05, 2))
        durations.append(float((timeline.time_s - before_s).max()))
    assert durations[0] > durations[1] + 0.1
    assert durations[1:] == pytest.approx([0.1, 0.1], rel=1e-3)


@pytest.mark.parametrize("name", ["all_reduce_mean", "exchange"])
def test_memory_is_linear_in_the_workers_and_does_not_grow_with_steps(name):
    def peak_bytes(num_workers: int, num_steps: int) -> int:
        tracemalloc.start()
        compute = ComputeTimes(
            forward_s=0.1, backward_s=0.2, bucket_ready_s=(0.2,), variation=Lognormal(sigma=0.1)
        )
        timeline = timeline_of(num_workers, compute=compute)
        operation = of_all(name, 1000, num_workers, 1 if name == "exchange" else None)
        for _ in range(num_steps):
            timeline.replay([TimelineJob(moment="bucket_ready", bucket=0, work=[operation])])
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak_bytes(64, 1)  # what is imported and cached once
    assert peak_bytes(4096, 4) < 10 * peak_bytes(512, 4)
    assert peak_bytes(512, 40) < 1.5 * peak_bytes(512, 8)


def test_a_thousand_workers_wait_no_longer_than_their_ring():
    """The latency of a ring grows with its workers, its bandwidth does not."""
    num_bytes = round(SECOND)
    timeline = timeline_of(1024, NetworkCondition(rate_mbit=100, delay_ms=1))
    timeline.on_operation(of_all("all_reduce_mean", num_bytes, 1024))
    assert timeline.time_s == pytest.approx([2 * 1023 / 1024 + 2 * 1023 * 0.001] * 1024, rel=1e-4)


def test_a_training_that_is_taken_up_goes_on_as_it_would_have():
    """Over a rate that changes twice, with factors that differ by step and worker."""
    schedule = [{"at_s": 2.0, "rate_mbit": 50}, {"at_s": 4.5, "rate_mbit": 25}]
    condition = NetworkCondition(rate_mbit=100, schedule=schedule)
    compute = replace(COMPUTE, variation=Lognormal(sigma=0.5), warm_up_s=3.0)
    whole, taken_up = (timeline_of(4, condition, compute) for _ in range(2))
    jobs = [TimelineJob(moment="bucket_ready", bucket=0, work=[all_to_all(0.2)])]
    for _ in range(4):
        whole.replay(jobs)
    taken_up.go_on(4, whole.time_s)
    for _ in range(4):
        whole.replay(jobs)
        taken_up.replay(jobs)
        assert taken_up.time_s == pytest.approx(whole.time_s)
    assert whole.time_s.min() > 4.5
    assert taken_up.num_steps == whole.num_steps == 8


def test_clocks_that_are_taken_up_as_one_are_all_there():
    timeline = timeline_of(3)
    timeline.go_on(7, 2.5)
    assert timeline.time_s.tolist() == [2.5] * 3
    run(timeline, "bucket_ready")
    assert timeline.time_s == pytest.approx([2.5 + 0.31] * 3)


def test_what_a_sender_has_handed_over_is_still_on_its_link_when_training_is_taken_up():
    """0.8 s of bytes a step, by whose uplink worker 0 does not wait; its step takes 0.31 s."""
    slow = NetworkCondition(rate_mbit=100, workers={0: {"up": {"rate_mbit": 1}}})
    transport = replace(BARE, socket_bytes=131_072)
    jobs = [TimelineJob(moment="step_end", work=[of_all("exchange", 100_000, 2, 1)])]
    whole, before, after = (timeline_of(2, slow, transport=transport) for _ in range(3))
    for _ in range(6):
        whole.replay(jobs)
    for _ in range(3):
        before.replay(jobs)
    after.go_on(3, before.time_s, before.links_free_s)
    for _ in range(3):
        after.replay(jobs)
    assert after.time_s == pytest.approx(whole.time_s, rel=1e-12)
    elsewhere = timeline_of(2, replace(slow, nodes={"size": 1}), transport=transport)
    elsewhere.go_on(3, before.time_s, before.links_free_s)


def test_at_rest_are_workers_at_one_time_with_nothing_on_their_links():
    timeline = timeline_of(2)
    run(timeline, "step_end", exchange(0.1, 2))
    assert timeline.is_at_rest
    timeline.begin_background()
    timeline.on_operation(exchange(2, 2))
    run(timeline, "step_end")
    assert not timeline.is_at_rest  # at one time, but the links are in use
    apart = timeline_of(compute=factors_of(1, 2, 1, 3))
    apart.replay([])
    assert not apart.is_at_rest
