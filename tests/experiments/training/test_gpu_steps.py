"""Steps on a real GPU. A loopback communicator stands in for the other workers: what NCCL does is
checked by `python -m experiments.gpu_check`.
"""

import tempfile
from pathlib import Path

import pytest
import torch

from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.worker_axis.models import SingleModel, StackedModel
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.messages import choices
from experiments.training.device_trace import device_trace, read_device_trace
from experiments.training.step import make_step
from experiments.training.torch_ddp import TorchDDP
from tests.gpu import without_host_waits

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

WARM_UP_STEPS = 4


def plan_of(*words):
    config = compose_config([*words, "workers=4", "max_steps=100", "model=mlp"])
    for key in ("warmup_steps", "start_step"):
        if key in config.algo:
            config.algo[key] = min(config.algo[key], WARM_UP_STEPS // 2)
    return make_plan(config, Path(tempfile.gettempdir()))


def stepper(plan, communicator, model):
    data = plan.task.load()
    optimizer = plan.make_optimizer(model.parameters())
    take_step = make_step(plan, data.train, model, optimizer, communicator)
    batches = plan.batches(data, communicator.ranks)
    return take_step.distributed, lambda step: take_step(batches.indices(step))


@pytest.mark.parametrize("algorithm", choices("algo"))
def test_the_host_waits_for_no_step(algorithm):
    plan = plan_of(f"algo={algorithm}", "backend=nccl")
    if isinstance(plan.algorithm, TorchDDP):
        pytest.skip("PyTorch's own")
    model = SingleModel(plan.model.to("cuda"))
    engine, take_step = stepper(plan, LoopbackCommunicator(4), model)
    for step in range(WARM_UP_STEPS):
        take_step(step)
    torch.cuda.synchronize()
    with without_host_waits():
        losses = [take_step(step) for step in range(WARM_UP_STEPS, WARM_UP_STEPS + 4)]
    assert torch.stack(losses).isfinite().all()
    engine.pause()
    engine.close()


@pytest.mark.parametrize("algorithm", ["allreduce", "bytegrad", "decentralized"])
def test_stacked_workers_train_as_on_a_cpu(algorithm):
    weights = []
    for device in ("cpu", "cuda"):
        plan = plan_of(f"algo={algorithm}", "backend=sim", f"device={device}")
        model = StackedModel(plan.model, plan.workers).to(device)
        engine, take_step = stepper(plan, StackedCommunicator(plan.workers), model)
        for step in range(5):
            take_step(step)
        engine.close()
        weights.append([p.detach().cpu() for p in model.parameters()])
    for on_cpu, on_gpu in zip(*weights, strict=True):
        torch.testing.assert_close(on_gpu, on_cpu, rtol=0, atol=5e-3)


def make_backward_long(model):
    """By 10 ms before the first layer's, when the buckets of the others are ready: on a fast GPU
    backward is over before a host has enqueued the compression of anything.
    """
    first = next(module for module in model.modules() if isinstance(module, torch.nn.Linear))

    def sleep_in_backward(module, inputs, output):
        output.register_hook(lambda gradient: torch.cuda._sleep(20_000_000))

    first.register_forward_hook(sleep_in_backward)


def test_a_trace_shows_compression_beside_backward_and_no_host_that_waits(tmp_path):
    plan = plan_of("algo=bytegrad", "backend=nccl", "bucket_bytes=65536", "batch_size=256")
    make_backward_long(plan.model)
    engine, take_step = stepper(plan, LoopbackCommunicator(4), SingleModel(plan.model.to("cuda")))
    with device_trace(tmp_path, 0):
        for step in range(10):
            take_step(step)
        torch.cuda.synchronize()
    engine.close()
    seen = read_device_trace(tmp_path / "trace.0.json")
    assert seen.num_steps == 7
    assert seen.host_waits == {}
    assert 0 < seen.hidden_s <= seen.communication_s
