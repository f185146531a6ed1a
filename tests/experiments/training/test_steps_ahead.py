"""Steps on a GPU that is not there: its events are done when a test says so."""

import math
from types import SimpleNamespace

import pytest
import torch

from bagua_algos.communication.communicator import CommunicationError
from bagua_algos.communication.stacked import StackedCommunicator
from experiments.training import steps_ahead
from experiments.training.meter import InterfaceMeter
from experiments.training.steps_ahead import MOST_AHEAD, StepsAhead


class FakeGpu:
    """Does a step each time that the host asks for one which is not done."""

    def __init__(self, *, hangs=False):
        self.num_recorded = 0
        self.num_done = 0
        self.num_asked_in_vain = 0
        self.hangs = hangs

    def record(self):
        self.num_recorded += 1
        return FakeEvent(self, self.num_recorded)


class FakeEvent:
    def __init__(self, gpu, number):
        self.gpu = gpu
        self.number = number

    def query(self):
        if self.number <= self.gpu.num_done:
            return True
        self.gpu.num_asked_in_vain += 1
        self.gpu.num_done += not self.gpu.hangs
        return False


def test_the_host_does_not_wait_for_the_last_steps():
    gpu = FakeGpu(hangs=True)
    steps = StepsAhead(5, gpu.record)
    for _ in range(MOST_AHEAD):
        steps.add()
    assert gpu.num_asked_in_vain == 0


def test_the_host_is_never_more_than_so_many_steps_ahead():
    gpu = FakeGpu()
    steps = StepsAhead(5, gpu.record)
    for number in range(1, 10):
        steps.add()
        assert number - gpu.num_done <= MOST_AHEAD


def test_finish_waits_for_all():
    gpu = FakeGpu()
    steps = StepsAhead(5, gpu.record)
    steps.add()
    steps.finish()
    assert gpu.num_done == gpu.num_recorded == 2


@pytest.mark.parametrize("wait", ["add", "finish"])
def test_a_gpu_that_hangs_is_noticed_and_said(wait):
    steps = StepsAhead(0.01, FakeGpu(hangs=True).record)
    with pytest.raises(CommunicationError, match=r"within 0\.01 s.*a worker that is silent"):
        for _ in range(MOST_AHEAD + 1):
            getattr(steps, wait)()


def test_the_limit_is_of_each_step_and_not_of_all(monkeypatch):
    clock_s = 0.0

    def sleep(seconds):
        nonlocal clock_s
        clock_s += 0.6  # every step takes so long

    clock = SimpleNamespace(sleep=sleep, monotonic=lambda: clock_s)
    monkeypatch.setattr(steps_ahead, "time", clock)
    gpu = FakeGpu()
    steps = StepsAhead(1.0, gpu.record)
    for _ in range(6):
        steps.add()
    steps.finish()
    assert gpu.num_done == 7
    assert clock_s > 4


class Clock:
    """The host's, and a counter of bytes that runs with it."""

    def __init__(self, monkeypatch):
        self.now_s = 100.0
        monkeypatch.setattr("experiments.training.meter.time.perf_counter", lambda: self.now_s)

    def bytes_sent(self):
        return round(10 * self.now_s)


def test_a_cpus_clock_stands_still_between_steps(monkeypatch):
    clock = Clock(monkeypatch)
    meter = InterfaceMeter(clock.bytes_sent)
    for _ in range(3):
        with meter.running():
            clock.now_s += 2
        clock.now_s += 50
    assert (meter.time_s, meter.bytes_sent) == (6, 60)


def test_a_gpus_clock_goes_on_until_it_is_read_and_then_waits_for_the_gpu(monkeypatch):
    clock, gpu = Clock(monkeypatch), FakeGpu()

    def finish():
        clock.now_s += 4  # what the GPU still had to do

    steps = StepsAhead(5, gpu.record)
    monkeypatch.setattr(steps, "finish", finish)
    meter = InterfaceMeter(clock.bytes_sent, steps)
    for _ in range(3):
        with meter.running():
            clock.now_s += 1
    assert (meter.time_s, meter.bytes_sent) == (7, 70)
    clock.now_s += 1000  # an evaluation
    assert meter.time_s == 7
    with meter.running():
        clock.now_s += 1
    assert (meter.time_s, meter.bytes_sent) == (12, 120)


def stop_of(meter, others, *, goes_on):
    """What a meter says of a stop, whose workers' clocks, and next ones, are `others`."""

    class Others(StackedCommunicator):
        def all_gather(self, x_w):
            return torch.tensor([[x_w[0].tolist(), *others]], dtype=torch.float64)

    return meter.stop(Others(1), goes_on=goes_on)


def test_a_stop_moves_no_clock_against_another(monkeypatch):
    """Who is ahead goes on later by as much, of those who go on at all."""
    clock = Clock(monkeypatch)
    meter = InterfaceMeter(clock.bytes_sent)
    with meter.running():
        clock.now_s += 12
    ended = [9.0, math.inf]
    assert stop_of(meter, [[10.0, 10.0], [15.0, 15.0], ended], goes_on=True) == (15, 2)
    assert stop_of(meter, [[13.0, 13.0]], goes_on=True) == (13, 0)
    assert stop_of(meter, [[10.0, 10.0]], goes_on=False) == (12, 0)
    assert meter.time_s == 12


def test_what_is_sent_while_training_stands_is_counted_and_takes_no_time(monkeypatch):
    clock = Clock(monkeypatch)
    meter = InterfaceMeter(clock.bytes_sent)
    with meter.running():
        clock.now_s += 2
    clock.now_s += 50
    with meter.standing():
        clock.now_s += 3
    clock.now_s += 50
    assert (meter.time_s, meter.bytes_sent) == (2, 20 + 30)


@pytest.mark.parametrize(("is_counted_before", "is_counted"), [(False, True), (True, False)])
def test_bytes_are_unknown_where_some_of_a_run_was_not_counted(
    is_counted_before, is_counted, monkeypatch
):
    clock = Clock(monkeypatch)
    first, then = (
        InterfaceMeter(clock.bytes_sent if counts else None)
        for counts in (is_counted_before, is_counted)
    )
    for meter in (first, then):
        with meter.running():
            clock.now_s += 2
        with meter.standing():
            clock.now_s += 1
        assert meter.bytes_sent == (30 if meter is first and is_counted_before else None)
        then.restore(first.state_dict(), step=1)
    assert (then.time_s, then.bytes_sent, then.state_dict()["bytes_sent"]) == (2, None, None)


def test_a_checkpoint_of_before_where_nothing_was_counted_is_gone_on_from(monkeypatch):
    meter = InterfaceMeter(Clock(monkeypatch).bytes_sent)
    meter.restore({"time_s": 30.0, "bytes_sent": 0}, step=3)
    assert (meter.time_s, meter.bytes_sent) == (30, 0)


def test_a_meter_is_set_to_the_slowest_workers_clock_and_restored(monkeypatch):
    clock = Clock(monkeypatch)
    meter = InterfaceMeter(clock.bytes_sent)
    meter.restore({"time_s": 30.0, "bytes_sent": 7}, step=3)
    with meter.running():
        clock.now_s += 2

    class Others(StackedCommunicator):
        def all_gather(self, x_w):
            assert x_w.device.type == "cpu"
            return torch.tensor([[[x_w.item()], [40.0]]], dtype=torch.float64)

    assert meter.time_s == 32
    meter.synchronize(Others(1))
    assert (meter.time_s, meter.bytes_sent) == (40, 27)
    assert meter.state_dict() == {"time_s": 40, "bytes_sent": 27}
