"""Each algorithm's training of a sharded model, by the rows of the suite over all algorithms."""

from functools import partial

import torch.nn.functional as F
from torch import Tensor

import bagua_algos
from tests.bagua_algos.fsdp2.net import (
    NUM_STEPS,
    OWN_UNITS,
    SHARDED_ROWS,
    Net,
    batch,
    make_two_groups,
)
from tests.bagua_algos.fsdp2.sharding import Place, shard, whole_weights


def train(place: Place, name: str) -> dict[str, Tensor]:
    """The consensus' weights after training."""
    model = Net()
    shard(model, place.mesh["shard"], OWN_UNITS, reshard_after_forward=False)
    optimizer = make_two_groups(name, model.named_parameters())
    bagua_algos.distribute(model, optimizer, SHARDED_ROWS[name](), place.replicas)
    for step in range(NUM_STEPS):
        x_b, y_b = batch(step, place.replica, place.shard)
        optimizer.zero_grad()
        F.cross_entropy(model(x_b), y_b).backward()
        optimizer.step()
    with bagua_algos.consensus(model):
        weights = whole_weights(model)
    bagua_algos.release(model)
    return weights


CASES = {name: partial(train, name=name) for name in SHARDED_ROWS}
