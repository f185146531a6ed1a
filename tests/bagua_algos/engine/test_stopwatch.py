import pytest
import torch

from bagua_algos.engine.stopwatch import StreamStopwatch, make_stopwatch, running
from kernels.upload import upload
from tests.bagua_algos.fake_cuda import DEVICE, FakeCuda
from tests.gpu import without_host_waits


def test_a_threads_time_adds_up(monkeypatch):
    clock_s = iter([1.0, 3.0, 10.0, 10.5])
    monkeypatch.setattr("time.perf_counter", lambda: next(clock_s))
    stopwatch = make_stopwatch(torch.device("cpu"))
    for _ in range(2):
        with running(stopwatch):
            pass
    assert stopwatch.seconds == 2.5


def test_a_streams_time_counts_once_the_gpu_has_come_by(monkeypatch):
    cuda = FakeCuda(monkeypatch)
    stopwatch = make_stopwatch(DEVICE)
    assert isinstance(stopwatch, StreamStopwatch)
    cuda.is_done = False
    for seconds in (2.0, 0.5):
        with running(stopwatch):
            cuda.now_s += seconds
        cuda.now_s += 7
    assert stopwatch.seconds == 0
    cuda.is_done = True
    assert stopwatch.seconds == pytest.approx(2.5)
    assert stopwatch.seconds == pytest.approx(2.5), "each lap counts once"


def test_a_stopwatch_that_is_started_again_begins_anew(monkeypatch):
    cuda = FakeCuda(monkeypatch)
    stopwatch = StreamStopwatch(DEVICE)
    stopwatch.start()
    cuda.now_s += 5
    stopwatch.start()
    cuda.now_s += 1
    stopwatch.stop()
    assert stopwatch.seconds == pytest.approx(1)


def test_an_upload_to_a_gpu_is_by_pinned_memory_and_nobody_waits():
    class Recorded:
        def __init__(self):
            self.calls = []

        def pin_memory(self):
            self.calls.append("pin")
            return self

        def to(self, device, *, non_blocking=False):
            self.calls.append((str(device), non_blocking))
            return self

    x = Recorded()
    assert upload(x, "cuda:1") is x
    assert x.calls == ["pin", ("cuda:1", True)]
    y = torch.arange(3)
    assert upload(y, "cpu").equal(y)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_a_real_stream_is_timed_without_a_host_that_waits():
    stopwatch = make_stopwatch(torch.device("cuda", 0))
    torch.cuda.synchronize()
    with without_host_waits():
        with running(stopwatch):
            torch.cuda._sleep(100_000_000)
        during_s = stopwatch.seconds
    torch.cuda.synchronize()
    assert during_s == 0
    assert 0.01 < stopwatch.seconds < 5
