import os

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from bagua_algos.communication.rendezvous import file_rendezvous
from experiments.models.cnn import CNN
from experiments.predict.trace import trace_step
from experiments.training.torch_ddp import TorchDDP
from host.processes import run_in_child


def test_a_state_without_a_hook_is_refused():
    with pytest.raises(ValueError, match="is the state of no hook: set comm_hook too"):
        TorchDDP(comm_hook_state=object)


@pytest.mark.parametrize("cap", [0, -1.0, float("nan")])
def test_a_bucket_without_room_is_refused(cap):
    with pytest.raises(ValueError, match=f"bucket_cap_mb must be more than 0 or null, got {cap}"):
        TorchDDP(bucket_cap_mb=cap)


def broadcasts_by_forward(path):
    """The bytes by type of what DDP broadcasts together, at each of two forwards of a CNN."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with file_rendezvous(str(path), backend="gloo", rank=0, world_size=1, timeout_s=30):
        model = DistributedDataParallel(CNN())
        calls, broadcast = [], dist._broadcast_coalesced

        def record(group, tensors, *rest):
            by_type = {}
            for tensor in tensors:
                by_type[tensor.dtype] = by_type.get(tensor.dtype, 0) + tensor.nbytes
            calls.append(tuple(by_type.values()))
            return broadcast(group, tensors, *rest)

        dist._broadcast_coalesced = record
        for _ in range(2):
            model(torch.zeros(2, 1, 28, 28)).sum().backward()
    return calls


def test_predictions_broadcast_what_ddp_does_at_each_forward(tmp_path):
    with torch.device("meta"):
        trace = trace_step("cnn", CNN(), {"": torch.zeros(2, 1, 28, 28)})
    counterpart = TorchDDP().counterpart(trace.buffer_bytes)
    calls = run_in_child(lambda: broadcasts_by_forward(tmp_path / "store"), doing="DDP's forwards")
    assert calls == [counterpart.buffer_bytes] * 2
    # Averages and variances of 16, 32 and 256 features, and three counts of batches.
    assert counterpart.buffer_bytes == (2 * 4 * (16 + 32 + 256), 3 * 8)
