import math
import warnings
from contextlib import nullcontext

import pytest
import torch

from bagua_algos import AllReduce
from bagua_algos.algorithms.top_k import TopK
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.worker_axis.models import SingleModel
from tests.bagua_algos.cases import make_model, on_worker_axis, take_step
from tests.bagua_algos.gradient_oracle import (
    NUM_PARAMETERS,
    ONE_BUCKET,
    averages,
    distance_on_a_quadratic,
    given_gradients,
    oracle,
    train,
)
from tests.bagua_algos.recorder import Recorder

DGC = TopK(ratio=0.03, momentum=0.9, clip_norm=20.0, warmup_steps=5)


def dgc_oracle(gradients, *, ratio, momentum=0.0, clip_norm=None, warmup_steps=0, masking=True):
    """Algorithm 4 of DGC for `gradients[steps, N, n]`, one worker after the other."""
    num_steps, world_size, n = gradients.shape
    u, v = torch.zeros(world_size, n), torch.zeros(world_size, n)
    means = []
    for step in range(num_steps):
        total = torch.zeros(n)
        for worker, g in enumerate(gradients[step]):
            if clip_norm is not None:
                limit = clip_norm / math.sqrt(world_size)
                g = g * min(1.0, limit / g.norm().item())
            u[worker] = momentum * u[worker] + g
            v[worker] += u[worker]
            share = ratio ** min(1, (step + 1) / (warmup_steps + 1))
            order = v[worker].abs().argsort(descending=True)[: math.ceil(share * n)]
            total[order] += v[worker][order]
            v[worker][order] = 0
            if masking:
                u[worker][order] = 0
        means.append(total / world_size)
    return torch.stack(means)


@pytest.mark.parametrize(
    "options",
    [
        {"ratio": 0.01},
        {"ratio": 0.1, "warmup_steps": 7},
        {"ratio": 0.03, "momentum": 0.9},
        {"ratio": 0.03, "momentum": 0.9, "masking": False},
        {"ratio": 0.03, "momentum": 0.9, "clip_norm": 20.0, "warmup_steps": 5},
    ],
    ids=str,
)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
def test_top_k_and_dgc_equal_their_oracle(world_size, options):
    gradients = given_gradients(world_size)
    expected = dgc_oracle(gradients, **options)
    fields = {{"masking": "momentum_masking"}.get(key, key): v for key, v in options.items()}
    ours = averages(TopK(**fields), gradients)
    torch.testing.assert_close(ours[:, 0], expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(ours, ours[:, :1].expand_as(ours))


def test_the_clipped_case_is_clipped():
    gradients = given_gradients(4)
    assert gradients.norm(dim=-1).min() > 20 / math.sqrt(4)


def test_what_is_short_already_is_left_as_it_is():
    gradients = given_gradients(4)
    limit = 1.5 * gradients.norm(dim=-1).max() * math.sqrt(4)
    clipped = averages(TopK(ratio=1.0, clip_norm=float(limit)), gradients)
    assert torch.equal(clipped, averages(TopK(ratio=1.0), gradients))


@pytest.mark.parametrize("sizes", [(160_000,), (40_000, 40_000)], ids=str)
def test_float16_gradients_whose_norm_is_beyond_its_range_are_clipped(sizes):
    """Of one bucket, and of two whose own norms are within it; the range ends at 65,504."""
    parameters = [torch.nn.Parameter(torch.zeros(size, dtype=torch.float16)) for size in sizes]
    model = SingleModel(torch.nn.ParameterList(parameters))
    algorithm, optimizer = TopK(ratio=1.0, clip_norm=1.0), torch.optim.SGD(model.parameters(), lr=1)
    engine = Engine(model, optimizer, algorithm, StackedCommunicator(1), bucket_bytes=1)
    sum((300 * p).sum() for p in parameters).backward()
    norm = torch.cat([p.grad for p in parameters]).double().norm()
    assert norm.item() == pytest.approx(1, rel=1e-2)
    engine.close()


def test_what_was_sent_and_what_was_not_is_all_there_was():
    """Error feedback loses nothing: once everything is sent, the sums are equal."""
    gradients = given_gradients(4)
    ours = averages(TopK(ratio=0.05), gradients)[:, 0].sum(0)
    unsent = gradients.sum(0).mean(0) - ours
    assert unsent.norm() > 0
    last = gradients.clone()
    last[-1] = 0
    flushed = torch.cat([last, torch.zeros(60, *last.shape[1:])])
    total = averages(TopK(ratio=0.05), flushed).sum(0)[0]
    torch.testing.assert_close(total, last.sum(0).mean(0), rtol=0, atol=1e-4)


@pytest.mark.parametrize("world_size", [1, 3, 4])
def test_everything_sent_is_all_reduce(world_size):
    torch.testing.assert_close(
        train(world_size, TopK(ratio=1.0)), train(world_size, AllReduce()), rtol=0, atol=1e-5
    )


def test_one_worker_that_sends_everything_is_plain_torch():
    expected = oracle(1, lambda _, gradients: gradients[0])
    torch.testing.assert_close(train(1, TopK(ratio=1.0))[0], expected, rtol=0, atol=1e-5)


def test_momentum_kept_here_is_the_optimizers_where_nothing_waits():
    here = TopK(ratio=1.0, momentum=0.9, momentum_masking=False)
    torch.testing.assert_close(
        train(4, here, momentum=0), train(4, AllReduce(), momentum=0.9), rtol=0, atol=1e-5
    )


def test_messages_are_eight_bytes_an_element_sent_and_clipping_changes_only_when():
    for algorithm in (TopK(ratio=0.01), TopK(ratio=0.01, clip_norm=1.0)):
        recorder = Recorder()
        train(4, algorithm, num_steps=2, observer=recorder)
        num_bytes = 8 * math.ceil(0.01 * NUM_PARAMETERS)
        assert recorder.messages == [("all_gather", num_bytes)] * 2


def test_warm_up_sends_less_every_step_and_ends_at_the_ratio():
    algorithm = TopK(ratio=0.001, warmup_steps=4)
    ratios = [algorithm.ratio_at(step) for step in range(7)]
    assert ratios[0] == pytest.approx(0.001**0.2)
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[3] > 0.001
    assert ratios[4:] == [0.001] * 3


@pytest.mark.parametrize(
    ("algorithm", "lr"),
    [(TopK(ratio=0.1), 0.05), (TopK(), 0.005), (TopK(ratio=0.1, momentum=0.9), 0.005)],
    ids=str,
)
def test_a_quadratic_converges(algorithm, lr):
    assert distance_on_a_quadratic(algorithm, lr=lr, num_steps=800) < 1e-2


def test_a_rate_that_suits_one_step_and_not_a_hundred_diverges():
    """What the module says: all-reduce is far from its limit here."""
    assert distance_on_a_quadratic(AllReduce(), lr=0.05, num_steps=200) < 1e-6
    assert distance_on_a_quadratic(TopK(ratio=0.01), lr=0.05, num_steps=200) > 1


def test_a_run_gives_the_same_bits_again():
    assert torch.equal(train(4, DGC, momentum=0), train(4, DGC, momentum=0))


def test_one_workers_nan_reaches_everyone():
    gradients = given_gradients(4, num_steps=1)
    gradients[0, 2, 7] = float("nan")
    assert averages(TopK(), gradients)[0, :, 7].isnan().all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("options", [{}, {"momentum": 0.9, "momentum_masking": False}], ids=str)
def test_a_gradient_that_overflows_is_forgotten_after_its_step(value, options):
    """Else as many steps would have some of it as it takes to send all."""
    gradients = given_gradients(2, num_steps=4)
    gradients[0] = value
    means = averages(TopK(**options), gradients)
    assert not means[0].isfinite().all()
    assert torch.equal(means[1:], averages(TopK(**options), gradients[1:]))


def test_where_nothing_is_kept_a_state_of_other_buckets_will_do():
    with pytest.warns(UserWarning, match="for good"):
        algorithm = TopK(ratio=0.1, error_feedback=False)
    communicator = StackedCommunicator(2)

    def step(bucket_bytes, *states):
        model = on_worker_axis(make_model(), communicator)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        engine = Engine(model, optimizer, algorithm, communicator, bucket_bytes=bucket_bytes)
        for state in states:
            engine.load_state_dict(state)
        take_step(model, optimizer, 0, communicator.ranks)
        engine.close()
        return engine.state_dict(), [p.detach() for p in model.parameters()]

    state, _ = step(ONE_BUCKET)
    for resumed, expected in zip(step(1, state)[1], step(1)[1], strict=True):
        assert torch.equal(resumed, expected)


@pytest.mark.parametrize("momentum", [0.9, 0.5])
def test_momentum_on_both_sides_is_refused_with_the_reason(momentum):
    with pytest.raises(ValueError, match=rf"own momentum is {momentum}.*twice.*1712\.01887"):
        train(2, DGC, momentum=momentum, num_steps=1)


def test_adams_first_moment_is_momentum_too():
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(ValueError, match=r"own momentum is 0\.9"):
        Engine(model, optimizer, DGC, StackedCommunicator(1))


def test_without_error_feedback_it_warns():
    with pytest.warns(UserWarning, match="drops 99% .* error_feedback=true"):
        TopK(error_feedback=False)
    with warnings.catch_warnings(action="error"):
        TopK(error_feedback=False, ratio=1.0)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"clip_norm": 1.0}])
def test_a_second_backward_pass_is_refused_where_the_first_would_count_twice(options):
    """As a step of its momentum, or as a gradient that is clipped already."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, TopK(**options), StackedCommunicator(1))
    model(torch.ones(2, 3)).sum().backward()
    loss = model(torch.ones(2, 3)).sum()
    with pytest.raises(ValueError, match="every backward pass") if options else nullcontext():
        loss.backward()
    engine.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": 0.0}, "ratio must be in .* got 0.0"),
        ({"ratio": 1.5}, "ratio must be in .* got 1.5"),
        ({"momentum": 1.0}, "momentum must be in .* got 1.0"),
        ({"clip_norm": 0.0}, "clip_norm must be more than 0 or None, got 0.0"),
        ({"warmup_steps": -1}, "warmup_steps must be a whole number of at least 0, got -1"),
        ({"momentum": 0.9, "error_feedback": False}, "momentum=0.9 needs error_feedback=true"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TopK(**options)
