"""Accumulation, scaling, clipping, schedules, parameter groups, frozen and tied weights, together:
every algorithm, on real and simulated workers.
"""

from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import nn

from bagua_algos import AllReduce
from bagua_algos.communication.stacked import StackedCommunicator
from tests.bagua_algos.algorithms.test_all_algorithms import EXACT, PLAIN_ALONE, TIES
from tests.bagua_algos.cases import NODES, WORLD_SIZE, Tensors, batch, losses
from tests.bagua_algos.gloo import run_program_once
from tests.bagua_algos.rows import ROWS
from tests.bagua_algos.training_cases import (
    AUTOCAST,
    CASES,
    FIRST_SCALE,
    RECIPES,
    STEADY_ROWS,
    Recipe,
    Script,
    make_two_groups,
    train_row,
)
from tests.bagua_algos.training_workers import (
    BATCH_SIZES,
    CLIP_NORM,
    REAL_CASES,
    make_plain_model,
)

EVERYTHING = RECIPES["everything"]
BF16_STEP = 2.0**-8
"""Relative; weights are about 0.3, and a few differ by some roundings after some steps."""


@pytest.fixture(scope="module")
def workers(tmp_path_factory) -> dict[str, Tensors]:
    """Every case by 4 gloo workers, their rows stacked."""
    results = run_program_once(tmp_path_factory, "tests.bagua_algos.training_workers", WORLD_SIZE)
    return {
        name: {key: torch.cat([r[name][key] for r in results]) for key in results[0][name]}
        for name in [*CASES, *REAL_CASES]
    }


def simulated(name: str, recipe: Recipe) -> Tensors:
    """What several tests compare is trained once."""
    return dict(_simulated(name, recipe))


@cache
def _simulated(name: str, recipe: Recipe) -> Tensors:
    return train_row(StackedCommunicator(WORLD_SIZE, nodes=NODES[WORLD_SIZE]), name, recipe)


@pytest.mark.parametrize("name", STEADY_ROWS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_real_workers_train_as_simulated_ones(workers, recipe, name):
    atol = 16 * BF16_STEP if recipe == "bf16 weights" else TIES.get(name, EXACT)
    for key, expected in simulated(name, RECIPES[recipe]).items():
        if recipe == "one runs out" and "norm." in key and key.count("running"):
            continue  # simulated, BatchNorm sees the examples that do not count
        ours = workers[f"{recipe} {name}"][key]
        torch.testing.assert_close(ours.float(), expected.float(), rtol=0, atol=atol)
        assert torch.equal(ours, ours[:1].expand_as(ours)), key


@pytest.mark.parametrize("name", STEADY_ROWS)
def test_autocast_is_rounding_in_forward_and_nothing_else(workers, name):
    """Weights, gradients and what travels stay in float32."""
    rounded, exact = (
        simulated(name, replace(AUTOCAST, autocast=dtype)) for dtype in (AUTOCAST.autocast, None)
    )
    if name == "all_reduce":
        ours = workers[f"bf16 autocast {name}"]
        torch.testing.assert_close(ours, rounded, rtol=0, atol=BF16_STEP)
    for key, expected in exact.items():
        assert rounded[key].dtype == expected.dtype
        torch.testing.assert_close(rounded[key], expected, rtol=0, atol=16 * BF16_STEP)


@pytest.mark.parametrize("name", STEADY_ROWS)
def test_an_overflow_on_one_worker_is_a_step_that_none_has_made(name):
    """Bit for bit, for every algorithm: states, weights and counts of steps."""
    scaled, skipping = (
        simulated(name, replace(EVERYTHING, scaled=is_scaled)) for is_scaled in (True, False)
    )
    # Doubled after three good steps, halved by the fourth, doubled after three more.
    assert scaled.pop("scale").eq(2 * FIRST_SCALE).all()
    skipping.pop("scale")
    for key, expected in skipping.items():
        assert torch.equal(scaled[key], expected), key


@pytest.mark.parametrize("name", ["qadam", "one_bit_adam", "one_bit_adam_preconditioned"])
def test_an_overflow_after_adams_moments_are_frozen_is_no_step_either(name):
    scaled, skipping = (
        simulated(name, replace(EVERYTHING, scaled=is_scaled, overflow_step=12, num_steps=15))
        for is_scaled in (True, False)
    )
    for key, expected in skipping.items():
        assert key == "scale" or torch.equal(scaled[key], expected), key


@pytest.mark.parametrize("name", PLAIN_ALONE)
def test_one_worker_is_plain_torch(name):
    recipe = replace(EVERYTHING, overflow_step=None)
    alone = train_row(StackedCommunicator(1, nodes=NODES[1]), name, recipe)
    plain = train_plainly(name, recipe)
    for key, expected in plain.items():
        torch.testing.assert_close(alone[key][0].view(expected.shape), expected, rtol=0, atol=1e-6)


def train_plainly(name: str, recipe) -> Tensors:
    """The same script on a model and an optimizer that nothing was hung on."""
    script = Script(
        StackedCommunicator(1), AllReduce(), recipe, lambda model: make_two_groups(model, name)
    )
    script.engine.close()
    for step in range(recipe.num_steps):
        script.optimizer.zero_grad()
        for x_b, y_b in zip(*(part.chunk(2) for part in batch(step, 0)), strict=True):
            loss = losses(script.model(x_b[None]), y_b[None]) / 2
            script.scaler.scale(loss).backward()
        script.scaler.unscale_(script.optimizer)
        nn.utils.clip_grad_norm_(script.model.parameters(), recipe.clip_norm)
        script.scaler.step(script.optimizer)
        script.scaler.update()
        script.schedule.step()
    return {name: p.detach() for name, p in script.model.named_parameters()}


@pytest.mark.parametrize("name", ROWS)
def test_what_is_frozen_stays_and_what_is_tied_stays_one(name):
    communicator = StackedCommunicator(WORLD_SIZE, nodes=NODES[WORLD_SIZE])
    script = Script(
        communicator, ROWS[name](), EVERYTHING, lambda model: make_two_groups(model, name)
    )
    body = script.model.module.body
    frozen, tied = body.frozen.weight.clone(), body.once.weight.clone()
    script.run()
    assert torch.equal(body.frozen.weight, frozen)
    assert body.again.weight is body.once.weight
    assert not torch.equal(body.once.weight, tied)


@pytest.mark.parametrize("name", STEADY_ROWS)
def test_gradients_that_are_zeroed_in_place_are_those_that_are_dropped(name):
    dropped, zeroed = (
        simulated(name, replace(EVERYTHING, set_to_none=set_to_none, overflow_step=None))
        for set_to_none in (True, False)
    )
    for key, expected in dropped.items():
        assert torch.equal(zeroed[key], expected), key


def test_batches_of_different_size_weigh_by_their_examples(workers):
    """Clipped to the norm of the gradient over all workers' examples, as one process would."""
    model = make_plain_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        parts = [
            [part[:size] for part in batch(step, rank)] for rank, size in enumerate(BATCH_SIZES)
        ]
        x_b, y_b = (torch.cat(part) for part in zip(*parts, strict=True))
        optimizer.zero_grad()
        losses(model(x_b)[None], y_b[None]).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        assert norm > CLIP_NORM
        optimizer.step()
    for name, expected in model.named_parameters():
        for row in workers["uneven batches"][name]:
            torch.testing.assert_close(row, expected.detach(), rtol=0, atol=1e-6)


def test_a_parameter_that_no_worker_uses_has_no_gradient(workers):
    results = workers["unused parameters"]
    for step in range(3):
        assert results[f"always {step}"].isfinite().all()
        torch.testing.assert_close(results[f"sometimes {step}"], torch.full((WORLD_SIZE, 3), 0.25))
        assert results[f"never {step}"].isnan().all()
    torch.manual_seed(0)
    started = REAL_CASES["unused parameters"].__globals__["Branches"]().never.weight
    assert torch.equal(results["never's weight"], started.expand(WORLD_SIZE, 3, 3))


def test_workers_start_from_everything_that_worker_0_holds(workers):
    torch.manual_seed(0)
    expected = nn.Linear(5, 4).weight
    results = workers["different starts"]
    assert torch.equal(results["0.weight"][0], expected)
    assert {"features", "mask", "nothing", "1.num_batches_tracked"} < set(results)
    for key, rows in results.items():
        assert torch.equal(rows, rows[:1].expand_as(rows)), key
    assert results["1.num_batches_tracked"].eq(1).all()
