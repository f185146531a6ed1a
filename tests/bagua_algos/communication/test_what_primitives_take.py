"""What primitives take and give back, the same for all communicators."""

import pytest
import torch
import torch.distributed as dist

from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.communication.process_group import ProcessGroupCommunicator
from bagua_algos.communication.stacked import StackedCommunicator
from tests.bagua_algos.recorder import Recorder

OPERATIONS = {
    "all_reduce_mean_": lambda workers, x: workers.all_reduce_mean_(x),
    "broadcast_": lambda workers, x: workers.broadcast_(x),
    "all_gather": lambda workers, x: workers.all_gather(x),
    "exchange": lambda workers, x: workers.exchange(x, range(workers.world_size)),
    "all_to_all": lambda workers, x: workers.all_to_all(x),
    "reduce_scatter_mean": lambda workers, x: workers.reduce_scatter_mean(x),
}
FOR_EACH = ("all_to_all", "reduce_scatter_mean")
AVERAGING = ("all_reduce_mean_", "reduce_scatter_mean")


@pytest.fixture(params=["stacked", "one stacked", "loopback", "one real"])
def workers(request):
    if request.param != "one real":
        kind = LoopbackCommunicator if request.param == "loopback" else StackedCommunicator
        yield kind(1 if request.param == "one stacked" else 3)
        return
    dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield ProcessGroupCommunicator()
    finally:
        dist.destroy_process_group()


def taken(name, workers):
    """A tensor of the rows that an operation takes, all numbers different."""
    held = len(workers.ranks)
    shape = (held, workers.world_size, 2) if name in FOR_EACH else (held, 2)
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).view(shape)


@pytest.mark.parametrize("name", OPERATIONS)
def test_other_rows_are_refused_before_anything_is_sent(workers, name):
    x = taken(name, workers)
    for wrong in (torch.cat([x, x]), x[:0], torch.tensor(1.0)):
        workers.observer = recorder = Recorder()
        with pytest.raises(ValueError, match=rf"{name} takes \[\d.*got \[.*\]$"):
            OPERATIONS[name](workers, wrong)
        assert not recorder.operations


@pytest.mark.parametrize("name", FOR_EACH)
@pytest.mark.parametrize("more", [-1, 1])
def test_other_rows_for_each_worker_are_refused(workers, name, more):
    held, world_size = len(workers.ranks), workers.world_size
    said = rf"{name} takes \[{held}, {world_size}, \.\.\.\].*got \[{held}, {world_size + more}, 2\]"
    with pytest.raises(ValueError, match=said):
        OPERATIONS[name](workers, torch.zeros(held, world_size + more, 2))


@pytest.mark.parametrize("name", AVERAGING)
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool])
def test_integers_have_no_mean(workers, name, dtype):
    x = taken(name, workers).to(dtype)
    kind = str(dtype).removeprefix("torch.")
    with pytest.raises(ValueError, match=rf"{name} averages .*, got {kind}: convert it first"):
        OPERATIONS[name](workers, x)


@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - set(AVERAGING)))
def test_integers_travel(workers, name):
    x = taken(name, workers)
    expected = OPERATIONS[name](workers, x.clone())
    came = OPERATIONS[name](workers, x.int())
    assert (came is None and expected is None) or torch.equal(came, expected.int())


@pytest.mark.parametrize("name", ["all_gather", "exchange", "all_to_all", "reduce_scatter_mean"])
def test_what_comes_back_stays_when_what_was_given_changes(workers, name):
    x = taken(name, workers)
    came = OPERATIONS[name](workers, x)
    before = came.clone()
    x.zero_()
    assert before.all() and torch.equal(came, before)
