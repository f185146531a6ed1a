import pytest
import torch

from bagua_algos.communication.loopback import LoopbackCommunicator
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.cases import make_model, on_worker_axis, take_step
from tests.bagua_algos.rows import OPTIMIZERS, ROWS, make_optimizer

WORLD_SIZE = 4


class Operations:
    """An observer that keeps what is told."""

    def __init__(self):
        self.heard = []

    def on_operation(self, operation):
        self.heard.append((operation.name, operation.num_bytes, operation.ranks, operation.peers))


def operations_of(name, communicator):
    model = on_worker_axis(make_model(), communicator)
    optimizer = OPTIMIZERS.get(name, make_optimizer)(model)
    engine = Engine(model, optimizer, ROWS[name](), communicator, bucket_bytes=4096)
    observer = communicator.observer
    per_step = []
    for step in range(9):
        observer.heard.clear()
        take_step(model, optimizer, step, communicator.ranks)
        per_step.append(sorted(observer.heard, key=repr))
    engine.close()
    return per_step


@pytest.mark.parametrize(
    "name", [name for name in ROWS if "hierarchical" not in name and "async" not in name]
)
def test_an_algorithm_asks_its_echo_for_what_it_asks_other_workers(name):
    alone = operations_of(name, LoopbackCommunicator(WORLD_SIZE, Operations()))
    together = operations_of(name, StackedCommunicator(WORLD_SIZE, Operations()))
    assert alone == together


def test_shapes_are_those_of_a_real_worker():
    own = LoopbackCommunicator(WORLD_SIZE)
    rows = torch.arange(8.0).view(1, WORLD_SIZE, 2)
    assert own.all_to_all(rows).equal(rows)
    assert own.all_gather(rows[:, 0]).equal(rows[:, :1].expand(1, WORLD_SIZE, 2))
    assert own.reduce_scatter_mean(rows).equal(rows.mean(1))
    assert own.exchange(rows, [1, 2, 3, 0]).equal(rows)
    with pytest.raises(ValueError, match=r"permutation of 0\.\.3"):
        own.exchange(rows, [1, 1, 2, 3])
    with pytest.raises(ValueError, match="world_size must be at least 1, got 0"):
        LoopbackCommunicator(0)


def test_a_part_is_the_node_of_worker_0():
    own = LoopbackCommunicator(5, Operations())
    (part,) = own.split([[0, 2], [1, 3, 4]])
    part.run_(torch.ones(1, 3), lambda x_p, among: among.all_reduce_mean_(x_p))
    assert part.communicator.world_size == 2
    assert part.communicator.observer.heard == [("all_reduce_mean", 12, (0, 2), None)]
    with pytest.raises(ValueError, match=r"every worker of 0\.\.4 must be in exactly one part"):
        own.split([[0, 2], [1, 3]])
