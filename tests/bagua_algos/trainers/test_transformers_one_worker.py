"""transformers' Trainer as RelaxedTrainer, as one worker finds it in its own process."""

from dataclasses import dataclass, field
from importlib.util import find_spec

import pytest
import torch
from torch import nn
from torch.optim import SGD

from bagua_algos import Algorithm, AllReduce, LocalSGD
from tests.bagua_algos.trainers import plain_loop
from tests.bagua_algos.trainers.plain_loop import Regression, Spare

pytestmark = [
    pytest.mark.skipif(
        find_spec("transformers") is None or find_spec("accelerate") is None,
        reason="the extra transformers is not installed",
    ),
    pytest.mark.filterwarnings("ignore"),  # transformers' own
]


@dataclass(frozen=True, kw_only=True)
class Counting(Algorithm):
    """Knows how many buckets there are."""

    numbers: list[int] = field(default_factory=list)

    def init(self, context):
        self.numbers.append(len(context.buckets))


class Wide(Regression):
    """Has three layers of a MiB each, which no worker uses."""

    def __init__(self):
        super().__init__()
        self.wide = nn.ModuleList(nn.Linear(1024, 256, bias=False) for _ in range(3))


@pytest.fixture
def make_trainer(launched, tmp_path):
    from accelerate.state import AcceleratorState

    from bagua_algos.trainers.transformers import RelaxedTrainer
    from tests.bagua_algos.trainers.transformers_workers import arguments

    def make_trainer(model, algorithm, *, weight_decay=0.0, **options):
        args = arguments(tmp_path, max_steps=1, **options)
        return RelaxedTrainer(
            model,
            args,
            algorithm=algorithm,
            train_dataset=plain_loop.examples(0),
            optimizers=(SGD(model.parameters(), lr=0.1, weight_decay=weight_decay), None),
        )

    yield make_trainer
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.parametrize(("megabytes", "num_buckets"), [(None, 1), (1, 4), (2, 2)])
def test_a_bucket_has_as_many_megabytes_as_ddps_option_says(make_trainer, megabytes, num_buckets):
    algorithm = Counting()
    make_trainer(Wide(), algorithm, ddp_bucket_cap_mb=megabytes).train()
    assert algorithm.numbers == [num_buckets]


@pytest.mark.parametrize(
    ("algorithm", "find", "decays"),
    [
        (AllReduce(), None, False),
        (AllReduce(), False, True),
        (LocalSGD(interval=2), None, True),
        (LocalSGD(interval=2), True, False),
    ],
)
def test_weights_that_nobody_uses_decay_unless_they_are_looked_for(
    make_trainer, algorithm, find, decays
):
    """Gradient algorithms look for them, as `Trainer` does."""
    model = Spare()
    before = model.spare.weight.clone()
    make_trainer(model, algorithm, weight_decay=0.5, ddp_find_unused_parameters=find).train()
    assert torch.equal(model.spare.weight, before) != decays


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ({}, {"worker_0.pt", "model.safetensors"}),
        ({"save_only_model": True}, {"model.safetensors"}),
    ],
)
def test_a_checkpoint_has_a_workers_part_unless_it_is_of_the_model_alone(
    make_trainer, tmp_path, options, files
):
    trainer = make_trainer(
        Regression(), LocalSGD(interval=2), save_strategy="steps", save_steps=1, **options
    )
    trainer.train()
    [checkpoint] = tmp_path.glob("checkpoint-*")
    found = {path.name for path in checkpoint.iterdir()}
    assert {name for name in found if name.startswith(("worker", "model"))} == files


def test_a_saved_model_is_no_checkpoint(make_trainer, tmp_path):
    trainer = make_trainer(Regression(), LocalSGD(interval=2))
    trainer.save_model(str(tmp_path / "before"))
    trainer.train()
    trainer.save_model(str(tmp_path / "after"))
    for folder in "before", "after":
        names = {path.name for path in (tmp_path / folder).iterdir()}
        assert names == {"model.safetensors", "training_args.bin"}
