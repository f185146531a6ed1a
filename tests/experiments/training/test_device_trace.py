"""Traces as PyTorch's profiler writes them, made by hand."""

import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

from experiments.training.device_trace import WARM_UP_STEPS, read_device_trace
from experiments.training.step import STEP

COMPUTE, LANE = 7, 20
STEP_US = 1000
NUM_STEPS = WARM_UP_STEPS + 2


def event(category, name, start_us, duration_us, stream=None):
    arguments = {} if stream is None else {"stream": stream}
    return {
        **{"ph": "X", "cat": category, "name": name, "args": arguments},
        **{"ts": start_us, "dur": duration_us},
    }


def steps():
    """Two kernels of compute a step, 200 us each, and one of a lane, of which 100 us are hidden."""
    events = [{"ph": "M", "name": "process_name", "args": {}}]
    for step in range(NUM_STEPS):
        start = step * STEP_US
        events += [
            event("user_annotation", STEP, start, 500),
            event("kernel", "gemm", start + 100, 200, COMPUTE),
            event("kernel", "gemm", start + 250, 250, COMPUTE),
            event("kernel", "ncclDevKernel", start + 400, 300, LANE),
            event("gpu_user_annotation", STEP, start + 100, 600),
        ]
    return events


def read(tmp_path, events):
    file = tmp_path / "trace.0.json"
    file.write_text(json.dumps({"traceEvents": events}))
    return read_device_trace(file)


def test_communication_is_hidden_where_compute_goes_on(tmp_path):
    seen = read(tmp_path, steps())
    assert seen.num_steps == 2
    assert seen.communication_s == pytest.approx(2 * 300e-6)
    assert seen.hidden_s == pytest.approx(2 * 100e-6)
    assert seen.host_waits == {}


def test_a_host_that_waits_within_a_step_is_counted(tmp_path):
    inside = WARM_UP_STEPS * STEP_US + 300
    waits = [
        event("cuda_runtime", "cudaStreamSynchronize", inside, 10),
        event("cuda_runtime", "cudaStreamSynchronize", inside + STEP_US, 10),
        event("cuda_driver", "cuCtxSynchronize", inside + 1, 10),
        event("cuda_runtime", "cudaStreamWaitEvent", inside, 10),  # a stream waits, not the host
        event("cuda_runtime", "cudaMemcpyAsync", inside, 10),
    ]
    assert read(tmp_path, steps() + waits).host_waits == {
        "cudaStreamSynchronize": 2,
        "cuCtxSynchronize": 1,
    }


@pytest.mark.parametrize("at_us", [300, WARM_UP_STEPS * STEP_US + 700])
def test_who_waits_while_warming_up_or_between_steps_is_not(tmp_path, at_us):
    wait = event("cuda_runtime", "cudaDeviceSynchronize", at_us, 10)
    assert read(tmp_path, [*steps(), wait]).host_waits == {}


def test_a_trace_of_a_cpu_alone_shows_nothing(tmp_path):
    events = [e for e in steps() if e.get("cat") != "kernel"]
    with pytest.raises(ValueError, match="0 kernels"):
        read(tmp_path, events)


def test_steps_are_found_in_what_the_profiler_writes(tmp_path):
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(NUM_STEPS):
            with record_function(STEP):
                torch.ones(3).sum()
    written = tmp_path / "written.json"
    profiler.export_chrome_trace(str(written))
    events = json.loads(written.read_text())["traceEvents"]
    last_us = max(e["ts"] for e in events if e.get("name") == STEP)
    kernel = event("kernel", "gemm", last_us, 1, COMPUTE)
    assert read(tmp_path, [*events, kernel]).num_steps == 2
