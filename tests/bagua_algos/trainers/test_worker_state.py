"""A worker's part of a checkpoint fits the model that takes it up, or changes nothing of it."""

import pytest
import torch
from torch import nn

import bagua_algos
from bagua_algos import LocalSGD
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.trainers.worker_state import load_worker_state, worker_state


def distributed(sizes: tuple[int, int], *, frozen: bool = False):
    torch.manual_seed(sum(sizes) + frozen)
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model.register_buffer("seen", torch.rand(sizes))
    model[0].requires_grad_(not frozen)
    optimizer = torch.optim.AdamW(model.parameters())
    bagua_algos.distribute(model, optimizer, LocalSGD(), StackedCommunicator(1))
    return model, optimizer


@pytest.mark.parametrize(
    ("saved", "loaded", "sentence"),
    [
        ({"frozen": True}, {}, r"has nothing for '0.weight', of which the model trains \[3, 3\]"),
        ({}, {"frozen": True}, r"has \[3, 3\] for '0.weight', of which the model trains nothing"),
        ({"sizes": (1, 2)}, {}, r"has \[1, 2\] for 'seen', of which the model trains \[4, 2\]"),
    ],
)
def test_a_part_of_another_model_is_refused_before_anything_is_changed(saved, loaded, sentence):
    own_state = worker_state(*distributed(**{"sizes": (4, 2)} | saved))
    model, optimizer = distributed(**{"sizes": (4, 2)} | loaded)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    with pytest.raises(ValueError, match=f"the checkpoint {sentence}: resume with the same"):
        load_worker_state(model, optimizer, own_state)
    assert all(x.equal(before[name]) for name, x in model.state_dict().items())
