import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from bagua_algos.data import (
    LoadBalancingDistributedBatchSampler,
    LoadBalancingDistributedSampler,
)
from bagua_algos.data.balance import Balance
from bagua_algos.data.sampler import deals_to_workers
from tests.bagua_algos.data.examples import Sequences

DATA = Sequences()
COSTS = [len(example) for example in DATA.examples]


def sampler(rank: int = 0, num_replicas: int = 4, **options) -> LoadBalancingDistributedSampler:
    return LoadBalancingDistributedSampler(DATA, COSTS, num_replicas, rank, **options)


def batch_sampler(rank: int = 0, **options) -> LoadBalancingDistributedBatchSampler:
    options = {"max_cost": 100} | options
    return LoadBalancingDistributedBatchSampler(DATA, COSTS, 4, rank, **options)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_replicas", [1, 3, 4, 60])
def test_as_many_examples_as_torchs_own(num_replicas, drop_last):
    if drop_last and num_replicas > len(DATA):
        with pytest.raises(ValueError, match="50 examples are not one for each of 60 workers"):
            sampler(num_replicas=num_replicas, drop_last=drop_last)
        return
    for rank in {0, num_replicas - 1}:
        ours = sampler(rank, num_replicas, drop_last=drop_last)
        theirs = DistributedSampler(DATA, num_replicas, rank, drop_last=drop_last)
        assert len(list(ours)) == len(ours) == len(theirs)


def test_workers_of_a_loader_get_like_costs_at_each_step():
    loaders = [
        DataLoader(DATA, batch_size=3, collate_fn=list, sampler=sampler(rank, batch_size=3))
        for rank in range(4)
    ]
    seen, spreads = [], []
    for batches in zip(*loaders, strict=True):
        lengths = [[len(example) for example in batch] for batch in batches]
        spreads.append(max(map(max, lengths)) - min(map(min, lengths)))
        seen += [example for batch in batches for example in batch]
    assert len({id(example) for example in seen}) == len(DATA)
    assert max(spreads) <= 20 and sum(spreads) / len(spreads) < 12


def test_without_a_batch_size_examples_of_the_same_place_alone_cost_the_same():
    assert list(sampler()) == list(sampler(batch_size=1)) != list(sampler(batch_size=2))


def test_set_epoch_gives_another_order():
    own = sampler()
    first = list(own)
    assert list(own) == first
    own.set_epoch(1)
    assert list(own) != first
    own.set_epoch(0)
    assert list(own) == first


def test_batches_of_an_epoch_are_made_once(monkeypatch):
    """A progress bar may ask for their number at each step."""
    make, made = Balance.batches, []
    monkeypatch.setattr(
        *(Balance, "batches"),
        lambda *args, **options: made.append(args[2]) or make(*args, **options),
    )
    own = batch_sampler()
    for epoch in (0, 1):
        own.set_epoch(epoch)
        assert len(own) == len(list(own)) == len(own)
    assert made == [0, 1]


@pytest.mark.parametrize(
    ("options", "deals"),
    [
        (lambda: {"sampler": sampler(), "batch_size": 2}, True),
        (lambda: {"batch_sampler": batch_sampler()}, True),
        (lambda: {"batch_sampler": BatchSampler(sampler(), 2, drop_last=False)}, True),
        (lambda: {"sampler": DistributedSampler(DATA, 4, 0)}, False),
        (lambda: {"shuffle": True}, False),
    ],
    ids=["examples", "batches", "batches of examples", "torch's", "none"],
)
def test_a_trainer_is_told_whether_a_loader_deals_to_workers_already(options, deals):
    assert deals_to_workers(DataLoader(DATA, **options())) == deals


MAKERS = {"examples": lambda: sampler(1, batch_size=2), "batches": lambda: batch_sampler(1)}


@pytest.mark.parametrize("kind", MAKERS)
@settings(deadline=None, max_examples=20)
@given(epoch=st.integers(0, 3), share=st.floats(0, 1))
def test_a_stopped_epoch_goes_on_where_it_was(kind, epoch, share):
    stopped = MAKERS[kind]()
    stopped.set_epoch(epoch)
    num_taken = round(share * len(stopped))
    state = stopped.state_dict(num_taken)
    resumed = MAKERS[kind]()
    resumed.load_state_dict(state)
    resumed.set_epoch(epoch)  # as the loop over epochs does
    assert list(resumed) == list(stopped)[num_taken:]
    assert list(resumed) == list(stopped), "the next epoch is whole"
    resumed.load_state_dict(state)
    resumed.set_epoch(epoch + 1)
    stopped.set_epoch(epoch + 1)
    assert list(resumed) == list(stopped), "another epoch is whole"


def test_a_loader_with_processes_takes_ahead_and_the_state_is_of_what_was_trained_on():
    own = sampler(batch_size=2)
    loader = DataLoader(DATA, batch_size=2, collate_fn=list, sampler=own, num_workers=1)
    batches = iter(loader)
    trained = [next(batches) for _ in range(2)]
    state = own.state_dict(num_taken=4)
    resumed = sampler(batch_size=2)
    resumed.load_state_dict(state)
    rest = [batch for batch in DataLoader(DATA, batch_size=2, collate_fn=list, sampler=resumed)]
    lengths = [len(example) for batch in trained + rest for example in batch]
    assert lengths == [COSTS[i] for i in sampler(batch_size=2)]


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (lambda: sampler(num_replicas=2, batch_size=2), "num_workers was 4 and is 2"),
        (lambda: sampler(seed=1, batch_size=2), "seed was 0 and is 1"),
        (lambda: sampler(batch_size=3), "batch_size was 2 and is 3"),
        (lambda: sampler(batch_size=2, random_level=0.1), "random_level was 0.0 and is 0.1"),
        (lambda: LoadBalancingDistributedSampler(DATA, COSTS[::-1], 4, 0, batch_size=2), "costs"),
    ],
)
def test_a_state_of_another_order_is_refused(other, name):
    state = sampler(batch_size=2).state_dict(3)
    with pytest.raises(ValueError, match=name):
        other().load_state_dict(state)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"num_taken": -1}, r"the state's num_taken must be a whole number in 0\.\.\d+, got -1"),
        ({"num_taken": 99}, r"the state's num_taken must be a whole number in 0\.\.\d+, got 99"),
        ({"num_taken": 2.0}, "the state's num_taken"),
        ({"epoch": "1"}, "the state's epoch must be a whole number of at least 0, got 1"),
        ({"order": None}, "no state of a balanced sampler"),
    ],
)
def test_a_state_that_none_returned_is_refused_and_changes_nothing(kind, wrong, what):
    own = MAKERS[kind]()
    whole = list(own)
    state = own.state_dict(1)
    own.load_state_dict(state | {"num_taken": len(own)})
    with pytest.raises(ValueError, match=what):
        own.load_state_dict(state | {"epoch": 1} | wrong)
    assert own.epoch == 0
    assert list(own) == []
    assert list(own) == whole


@pytest.mark.parametrize("foreign", [{}, {"epoch": 0, "num_taken": 3}, {"state": {}}, None])
def test_a_foreign_state_is_refused(foreign):
    with pytest.raises(ValueError, match="no state of a balanced sampler: give what state_dict"):
        sampler().load_state_dict(foreign)


def test_a_state_of_batches_is_of_its_own_epoch():
    """Epochs may have different numbers of batches."""
    lengths = []
    for epoch in range(20):
        own = batch_sampler(random_level=0.5)
        own.set_epoch(epoch)
        lengths.append(len(own))
        batch_sampler(random_level=0.5).load_state_dict(own.state_dict(len(own)))
    assert len(set(lengths)) > 1


def test_a_state_can_be_saved(tmp_path):
    torch.save(sampler().state_dict(3), tmp_path / "state.pt")
    resumed = sampler()
    resumed.load_state_dict(torch.load(tmp_path / "state.pt"))  # weights_only
    assert list(resumed) == list(sampler())[3:]


def test_batches_by_a_budget_are_a_loaders_and_equally_many_on_all_workers():
    own = [batch_sampler(rank) for rank in range(4)]
    loader = DataLoader(DATA, batch_sampler=own[0], collate_fn=list)
    for batch in loader:
        assert len(batch) * max(map(len, batch)) <= 100
    of_steps = list(zip(*own, strict=True))
    assert len(of_steps) == len(own[0])
    assert all(len({len(batch) for batch in batches}) == 1 for batches in of_steps)
    taken = [index for batches in of_steps for batch in batches for index in batch]
    assert set(taken) == set(range(50)) and len(taken) == 52


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: sampler(rank=4), r"rank must be a whole number in 0\.\.3, got 4"),
        (lambda: sampler(rank=0.5), r"rank must be a whole number in 0\.\.3, got 0\.5"),
        (lambda: sampler(num_replicas=0), "num_replicas must be a whole number of at least 1"),
        (lambda: sampler(num_replicas=2.0), "num_replicas must be a whole number of at least 1"),
        (lambda: sampler(batch_size=0), "batch_size must be a whole number of at least 1, got 0"),
        (lambda: sampler(batch_size="4"), "batch_size must be a whole number of at least 1"),
        (lambda: sampler(batch_size=2.5), "batch_size must be a whole number of at least 1"),
        (lambda: sampler().set_epoch(-1), "epoch must be a whole number of at least 0, got -1"),
        (lambda: sampler().set_epoch("1"), "epoch must be a whole number of at least 0, got 1"),
        (lambda: sampler(drop_last="no"), r"drop_last must be True or False"),
        (lambda: sampler().state_dict(14), r"num_taken must be a whole number in 0\.\.13"),
        (lambda: LoadBalancingDistributedSampler(DATA, COSTS), "or give num_replicas and rank"),
        (lambda: LoadBalancingDistributedSampler(DATA, COSTS[1:], 2, 0), r"shape \(49,\)"),
        (lambda: LoadBalancingDistributedSampler([], [], 2, 0), "no examples"),
        (lambda: batch_sampler(max_cost=math.nan), "max_cost must be a number, got nan"),
        (lambda: batch_sampler(max_cost="100"), "max_cost must be a number, got '100'"),
        (lambda: batch_sampler(max_cost=30), "more than max_cost=30: give a greater"),
        (
            lambda: LoadBalancingDistributedBatchSampler(DATA, [0] * 50, 2, 0, max_cost=9),
            "give a complexity above 0",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, what):
    with pytest.raises(ValueError, match=what):
        make()
