"""Whether a model's workers share memory: what is asked for, and what cannot be."""

import pytest
import torch

from bagua_algos import ProcessGroupCommunicator
from bagua_algos.communication.connections import choice
from bagua_algos.communication.connections.choice import with_shared_memory
from bagua_algos.communication.stacked import StackedCommunicator

LEAVE_IT_OUT = "^shared_memory=True is for gloo's workers, and these are {}: leave it out$"


@pytest.mark.usefixtures("one_worker")
@pytest.mark.parametrize("before", [True, False, None])
@pytest.mark.parametrize("asked", [True, False, None])
def test_gloos_workers_do_as_they_are_asked(before, asked):
    workers = ProcessGroupCommunicator(shared_memory=before, streams=2)
    chosen = with_shared_memory(workers, asked)
    assert chosen.shared_memory is asked and chosen.streams == 2
    assert (chosen is workers) == (asked is before)
    assert workers.shared_memory is before


@pytest.mark.parametrize("asked", [False, None])
def test_simulated_workers_share_none_and_need_not_say_so(asked):
    workers = StackedCommunicator(2)
    assert with_shared_memory(workers, asked) is workers


def test_simulated_workers_cannot_be_asked_to():
    with pytest.raises(ValueError, match=LEAVE_IT_OUT.format("StackedCommunicator's")):
        with_shared_memory(StackedCommunicator(2), True)


@pytest.mark.usefixtures("one_worker")
def test_workers_of_another_back_end_cannot_be_asked_to(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(choice, "limit_of", lambda group: None)
    workers = ProcessGroupCommunicator(device=torch.device("cpu"))
    assert with_shared_memory(workers, None) is workers
    with pytest.raises(ValueError, match=LEAVE_IT_OUT.format("another backend's")):
        with_shared_memory(workers, True)
