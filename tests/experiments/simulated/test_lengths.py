"""Simulated steps are as long as the batches that are cut to their longest example."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.simulated.lengths import ByLength, by_length, by_places, places
from experiments.simulated.profile import JobKernels, Profile, setting_of
from experiments.simulated.simulate import make_timeline
from host.errors import UserError
from netsim.timeline.compute import Constant, Straggler
from tests.experiments.tasks.test_sequences import load

WORDS = ["algo=allreduce", "experiment=spoken_digits", "backend=sim", "net=none"]


def plan_of(*overrides: str):
    return make_plan(compose_config([*WORDS, *overrides]), Path())


def profile_of(plan) -> Profile:
    return Profile(
        device="",
        sharing=1,
        setting=setting_of(plan, load(plan.task)),
        forward_s=0.4,
        late_s=0.0,
        ready_s=(0.5,),
        backward_s=0.5,
        optimizer_s=0.1,
        jobs=(JobKernels(moment="on_bucket_ready", bucket=0, kernels_s=(0.0,)),),
        per_place=0.04,
        mean_places=20.0,
    )


def test_factors_follow_the_longest_example_of_each_worker():
    plan = plan_of("data.sampler=shuffled", "data.sampler.crop=true")
    data = load(plan.task)
    lengths = plan.task.lengths(data.train)
    variation = by_length(plan, profile_of(plan), Straggler(slowdown=2.0))
    batches = plan.batches(data, (0, 1, 2, 3))
    for step in (0, 3, 70):
        expected = 1 + 0.04 * (lengths[batches.indices(step)].max(1) - 20)
        expected[0] *= 2
        np.testing.assert_allclose(variation.factors(step, 4), expected)


def test_micro_batches_are_cut_one_by_one():
    indices = np.arange(8).reshape(2, 4)
    lengths = np.array([1, 2, 3, 9, 5, 5, 5, 7])
    assert places(indices, lengths, 1).tolist() == [9, 7]
    assert places(indices, lengths, 2).tolist() == [(2 + 9) / 2, (5 + 7) / 2]


def test_balanced_batches_let_nobody_wait_and_shuffled_ones_do():
    """Mean seconds a step, of which the mean batch's own work is 1 at 20 places."""
    step_s = {}
    for sampler in ("shuffled", "balanced"):
        plan = plan_of(f"data.sampler={sampler}", "data.sampler.crop=true")
        load(plan.task)
        timeline = make_timeline(plan, profile_of(plan))
        factors = [timeline.compute.variation.factors(step, 4) for step in range(62)]
        step_s[sampler] = np.max(factors, 1).mean()
    assert step_s["shuffled"] / step_s["balanced"] > 1.3


def test_batches_that_are_not_cut_vary_by_nothing():
    plan = plan_of()
    assert by_length(plan, profile_of(plan), Constant()) == Constant()


def test_the_slope_is_found_among_outliers():
    numbers = np.random.default_rng(0)
    x = numbers.integers(10, 40, 60).astype(float)
    y = 0.002 + 0.0004 * x + numbers.normal(0, 1e-4, 60)
    y[::7] *= 20
    found = by_places(profile_of(plan_of()), x.tolist(), y.tolist())
    assert found.mean_places == x.mean()
    assert found.per_place == pytest.approx(0.0004 / np.median(y), rel=0.1)
    equal = by_places(replace(found, per_place=0.0), [20.0] * 3, [1.0, 2.0, 3.0])
    assert (equal.per_place, equal.mean_places) == (0.0, 20.0)


def test_a_profile_is_of_cut_batches_or_of_whole_ones():
    whole, cut = plan_of(), plan_of("data.sampler=balanced")
    older = dict(setting_of(whole, load(whole.task)))
    del older["data.sampler.crop"]  # as profiles were before
    replace(profile_of(whole), setting=older).check(whole, load(whole.task))
    with pytest.raises(UserError, match=r"the profile is of data.sampler.crop=False, and this"):
        replace(profile_of(whole), setting=older).check(cut, load(cut.task))
    with pytest.raises(UserError, match="crop=True"):
        profile_of(cut).check(whole, load(whole.task))
    assert isinstance(by_length(cut, profile_of(cut), Constant()), ByLength)


def test_a_profile_is_of_one_size_of_a_model():
    words = ("task=mnist5k", "model=mlp")
    small, large = plan_of(*words, "model.hidden=[8]"), plan_of(*words, "model.hidden=[16]")
    data = load(small.task)
    profile_of(small).check(small, data)
    with pytest.raises(UserError, match=r"the profile is of parameters=\d+, and this run has"):
        profile_of(small).check(large, data)
    older = dict(setting_of(small, data))
    del older["parameters"]
    replace(profile_of(small), setting=older).check(large, data)  # it does not say
