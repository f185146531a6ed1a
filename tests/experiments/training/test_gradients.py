from dataclasses import replace
from pathlib import Path

import pytest

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.training.gradients import GradientFacts, gradient_facts
from host.errors import UserError


@pytest.fixture(scope="module")
def plan():
    return make_plan(compose_config(["algo=allreduce", "task=mnist5k", "model=mlp"]), Path())


def test_a_batch_of_few_examples_bounds_the_rank(plan):
    facts = gradient_facts(plan, 2)
    num_weights = sum(p.numel() for p in plan.model.parameters())
    assert 1 < facts.max_rank <= plan.batch_size
    assert 0 < facts.median_entries <= facts.max_entries <= num_weights
    assert facts == gradient_facts(plan, 2)


def test_batches_are_full(plan):
    large = replace(plan, batch_size=1500)  # 3,500 examples
    with pytest.raises(UserError, match=r"^3500 .* fill 2 batches of 1500, fewer than 3: take"):
        gradient_facts(large, 3)
    assert gradient_facts(large) == gradient_facts(large, 2)
    with pytest.raises(UserError, match="fill 0 batches of 4000, fewer than 1: "):
        gradient_facts(replace(plan, batch_size=4000))


def test_no_batch_has_no_gradient(plan):
    with pytest.raises(ValueError, match="num_batches must be at least 1, got 0"):
        gradient_facts(plan, 0)


def test_it_says_all_three():
    facts = GradientFacts(max_rank=1, median_entries=2290.5, max_entries=2930)
    assert str(facts) == "rank at most 1; entries: median 2290.5, most 2930"
