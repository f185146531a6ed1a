from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from bagua_algos.algorithms.qadam import QAdam
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.compressors import QSGD, SignScale
from bagua_algos.compressors.compressor import Compressor
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.cases import (
    average_gradients_,
    backward,
    make_model,
    on_worker_axis,
    take_step,
)
from tests.bagua_algos.quadratic import (
    SIZE,
    CompressedMean,
    Quadratic,
    Training,
    interrupted,
    min_max,
    sign_scale,
    start,
    target,
)

LR, BETAS, EPS, WEIGHT_DECAY = 0.03, (0.8, 0.95), 1e-6, 0.1
WARMUP, NUM_STEPS = 10, 40


@dataclass(frozen=True, kw_only=True)
class Lossless(Compressor):
    """Floats as their bytes."""

    unbiased: ClassVar[bool] = True

    def wire_bytes(self, num_elements):
        return 4 * num_elements

    def compress(self, x, draw=None):
        return x.contiguous().view(torch.uint8)

    def decompress(self, payload, num_elements):
        return payload.contiguous().view(torch.float32)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=LR, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=LR, betas=BETAS, eps=EPS, weight_decay=WEIGHT_DECAY)


def oracle(num_workers, make_optimizer, mean, num_steps, precondition=False):
    """Torch's Adam on mean gradients; then x, m and v by hand. `mean` is that of the momenta."""
    x = start().requires_grad_()
    optimizer = make_optimizer([x])
    for step in range(WARMUP):
        gradients = [x.detach() - target(step, rank) for rank in range(num_workers)]
        x.grad = torch.stack(gradients).sum(0) / num_workers
        optimizer.step()
    x = x.detach()
    (moments,) = optimizer.state.values()
    m, v_hat = moments["exp_avg"], moments["exp_avg_sq"] / (1 - BETAS[1] ** WARMUP)
    denominator = v_hat.sqrt() + EPS
    unit = denominator if precondition else torch.ones(SIZE)
    m = m / unit
    decoupled = isinstance(optimizer, torch.optim.AdamW)
    for step in range(WARMUP, num_steps):
        gradients = [x - target(step, rank) for rank in range(num_workers)]
        if not decoupled:
            gradients = [g.add(x, alpha=WEIGHT_DECAY) for g in gradients]
        m = mean([m.lerp(g / unit, 1 - BETAS[0]) for g in gradients])
        if decoupled:
            x = x * (1 - LR * WEIGHT_DECAY)
        step_size = LR / (1 - BETAS[0] ** (step + 1))
        x = x.addcdiv(m, denominator / unit, value=-step_size)
    return x


@pytest.mark.parametrize("make_optimizer", [adam, adamw])
@pytest.mark.parametrize(
    ("compressor", "code", "error_feedback", "precondition"),
    [
        (MinMaxUInt8(), min_max, False, False),
        (MinMaxUInt8(), min_max, True, False),
        (SignScale(), sign_scale, True, False),
        (SignScale(), sign_scale, True, True),
    ],
)
@pytest.mark.parametrize("num_workers", [1, 2, 3, 4, 8])
def test_it_is_what_an_oracle_of_plain_torch_computes(
    num_workers, compressor, code, error_feedback, precondition, make_optimizer
):
    """To rounding for the first steps after the switch; later a code at a tie may be rounded
    otherwise, which moves x by LR / sqrt(v) of a code. (Left out, error feedback moves it by 2e-3.)
    """
    algorithm = QAdam(
        warmup_steps=WARMUP,
        compressor=compressor,
        error_feedback=error_feedback,
        precondition=precondition,
    )
    training, early = Training(num_workers, algorithm, make_optimizer), WARMUP + 4
    for first, stop, atol in [(0, early, 1e-6), (early, NUM_STEPS, 5e-4)]:
        mean = CompressedMean(code, num_workers, error_feedback)
        expected = oracle(num_workers, make_optimizer, mean, stop, precondition)
        x = training.steps(first, stop)
        torch.testing.assert_close(x, expected.expand_as(x), rtol=0, atol=atol)
        assert torch.equal(x, x[:1].expand_as(x))


def mlp_steps(num_workers, algorithm, make_optimizer, num_steps):
    communicator = StackedCommunicator(num_workers)
    model = on_worker_axis(make_model(), communicator)
    optimizer = make_optimizer(model.parameters())
    engine = Engine(model, optimizer, algorithm, communicator, bucket_bytes=4096)
    assert len(engine.context.buckets) > 1
    for step in range(num_steps):
        take_step(model, optimizer, step, communicator.ranks)
    return [p.detach() for p in model.parameters()]


def adam_on_mean_gradients(num_workers, make_optimizer, num_steps):
    models = [make_model() for _ in range(num_workers)]
    optimizers = [make_optimizer(model.parameters()) for model in models]
    for step in range(num_steps):
        for rank, model in enumerate(models):
            backward(model, step, rank)
        average_gradients_(models)
        for optimizer in optimizers:
            optimizer.step()
    return [p.detach() for p in models[0].parameters()]


@pytest.mark.parametrize("make_optimizer", [adam, adamw])
def test_warm_up_of_one_worker_is_torchs_adam_bit_for_bit(make_optimizer):
    ours = mlp_steps(1, QAdam(warmup_steps=20), make_optimizer, 20)
    for parameter, expected in zip(
        ours, adam_on_mean_gradients(1, make_optimizer, 20), strict=True
    ):
        assert torch.equal(parameter, expected)


@pytest.mark.parametrize("num_workers", [2, 3, 4, 8])
def test_warm_up_is_torchs_adam_on_mean_gradients(num_workers):
    # A large eps: where a gradient is rounding alone, Adam's step would be its sign.
    def make_optimizer(parameters):
        return torch.optim.Adam(parameters, lr=1e-3, eps=1e-3)

    ours = mlp_steps(num_workers, QAdam(warmup_steps=20), make_optimizer, 20)
    for parameter, expected in zip(
        ours, adam_on_mean_gradients(num_workers, make_optimizer, 20), strict=True
    ):
        torch.testing.assert_close(parameter, expected.expand_as(parameter), rtol=0, atol=1e-6)


def test_each_parameter_group_keeps_its_own_options_and_schedule():
    """Against one QAdam a group: groups that share a bucket do not mix, nor do later rates."""
    options = [
        {"lr": 0.03, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1},
        {"lr": 0.005, "betas": (0.95, 0.9), "eps": 1e-2, "weight_decay": 0.0},
    ]
    sizes = (11, 5, SIZE - 16)

    def train(groups, kept):
        training = Training(
            3,
            QAdam(warmup_steps=WARMUP, compressor=Lossless()),
            lambda parameters: torch.optim.AdamW(
                [
                    options[group] | {"params": [parameters[i] for i in members]}
                    for group, members in groups
                ]
            ),
            *sizes,
        )
        schedule = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.9)
        parts = training.steps(0, NUM_STEPS, schedule.step).split(sizes, 1)
        return [parts[i] for i in kept]

    mixed = train([(0, [0, 2]), (1, [1])], kept=[0, 1, 2])
    first, third = train([(0, [0, 1, 2])], kept=[0, 2])
    (second,) = train([(1, [0, 1, 2])], kept=[1])
    for part, expected in zip(mixed, [first, second, third], strict=True):
        torch.testing.assert_close(part, expected, rtol=0, atol=1e-6)


def test_after_the_switch_the_users_optimizer_changes_nothing():
    training = Training(2, QAdam(warmup_steps=WARMUP), adam)
    training.steps(0, WARMUP)
    (parameter,) = training.model.parameters()
    assert not training.optimizer.state
    training.optimizer.zero_grad()
    training.backward(WARMUP)
    found = []
    training.optimizer.register_step_pre_hook(lambda *_: found.append(parameter.grad))
    training.optimizer.step()
    assert found == [None]
    assert not training.optimizer.state


def test_gradients_accumulate_over_micro_batches():
    """Two micro-batches of equal targets, against one with twice the learning signal: with eps
    doubled as well, Adam's steps are equal.
    """
    algorithm = QAdam(warmup_steps=WARMUP, compressor=Lossless())
    once = Training(2, algorithm, lambda p: torch.optim.Adam(p, lr=LR, eps=1e-3))
    twice = Training(2, algorithm, lambda p: torch.optim.Adam(p, lr=LR, eps=2e-3))
    for step in range(NUM_STEPS):
        twice.optimizer.zero_grad()
        with twice.engine.no_sync():
            twice.backward(step)
        twice.backward(step)
        twice.optimizer.step()
    torch.testing.assert_close(twice.x, once.steps(0, NUM_STEPS), rtol=0, atol=1e-5)


@pytest.mark.parametrize("at", [WARMUP - 4, WARMUP, WARMUP + 7])
def test_a_checkpoint_continues_bit_for_bit(at):
    algorithm = QAdam(warmup_steps=WARMUP, compressor=SignScale(), error_feedback=True)
    unbroken = Training(4, algorithm, adamw).steps(0, NUM_STEPS)
    resumed = interrupted(lambda: Training(4, algorithm, adamw), at, NUM_STEPS)
    assert torch.equal(resumed, unbroken)


def test_the_same_seed_gives_the_same_bits():
    def train(seed):
        algorithm = QAdam(warmup_steps=WARMUP, compressor=QSGD(bits=4, seed=seed))
        return Training(4, algorithm, adam).steps(0, NUM_STEPS)

    assert torch.equal(train(0), train(0))
    assert not torch.equal(train(0), train(1))


@pytest.mark.parametrize(
    "algorithm",
    [
        QAdam(warmup_steps=50),
        QAdam(warmup_steps=50, compressor=SignScale(), error_feedback=True),
        QAdam(warmup_steps=50, compressor=SignScale(), error_feedback=True, precondition=True),
    ],
)
def test_a_quadratic_converges(algorithm):
    """Noise and a falling learning rate: the mean of the targets is found."""
    training = Training(
        4, algorithm, lambda parameters: torch.optim.Adam(parameters, lr=0.1), noise=0.1
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.98)
    x = training.steps(0, 300, schedule.step)
    assert (start() - torch.arange(SIZE) / SIZE).abs().max() > 1.9
    assert (x - torch.arange(SIZE) / SIZE).abs().max() < 0.05


class Scaled(Quadratic):
    """Element 5 of x has a gradient as large as `scale` says, the others as in `Quadratic`."""

    scale = 0.0

    def forward(self, c_bd):
        return super().forward(c_bd) * torch.where(torch.arange(SIZE) == 5, self.scale, 1.0)


def trained(model, algorithm):
    """The model on two workers, and its optimizer."""
    communicator = StackedCommunicator(2)
    model = on_worker_axis(model, communicator)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    Engine(model, optimizer, algorithm, communicator)
    for step in range(NUM_STEPS):
        c_wbd = torch.stack([target(step, rank)[None] for rank in range(2)])
        optimizer.zero_grad()
        model(c_wbd).square().sum().backward()
        optimizer.step()
    return model, optimizer


def furthest_from_start(model, algorithm):
    """Of the sixth element."""
    model, _ = trained(model, algorithm)
    return (next(model.parameters()) - start()).detach().abs()[:, 5].max().item()


@pytest.mark.parametrize("precondition", [False, True])
def test_an_element_without_a_gradient_in_warm_up_rests(precondition):
    """A sign code gives every element a momentum: divided by eps it would be thrown out."""
    algorithm = QAdam(
        warmup_steps=WARMUP,
        compressor=SignScale(),
        error_feedback=True,
        precondition=precondition,
    )
    assert furthest_from_start(Scaled(), algorithm) == 0


def test_what_rests_is_saved_without_a_second_moment():
    """So that it rests where that is loaded, too; and each moment has memory of its own."""
    _, optimizer = trained(Scaled(), QAdam(warmup_steps=WARMUP))
    [own] = optimizer.state_dict()["state"].values()
    assert own["exp_avg_sq"][:, 5].eq(0).all() and own["exp_avg_sq"].count_nonzero() > 0
    for moment in (own["exp_avg"], own["exp_avg_sq"]):
        assert moment.untyped_storage().nbytes() == moment.nbytes


def test_preconditioning_holds_an_element_of_tiny_gradients():
    """At most lr a step for Adam; a sign code of m moves it by as much as others' m is larger."""
    model, moved = Scaled(), {}
    model.scale = 1e-3  # gradients of a millionth
    for precondition in (False, True):
        algorithm = QAdam(
            warmup_steps=WARMUP,
            compressor=SignScale(),
            error_feedback=True,
            precondition=precondition,
        )
        moved[precondition] = furthest_from_start(model, algorithm)
    assert moved[True] < 2 * LR * NUM_STEPS
    assert moved[False] > 100 * LR * NUM_STEPS


@pytest.mark.parametrize("compressor", [MinMaxUInt8(), SignScale()])
def test_bytes_are_as_predicted(compressor):
    num_workers = 4
    training = Training(
        num_workers, QAdam(warmup_steps=1, compressor=compressor, error_feedback=True), adam
    )
    training.steps(0, 1)
    padded = num_workers * 16
    assert training.recorder.bytes_sent == 2 * 3 / 4 * 4 * padded
    training.recorder.operations.clear()
    training.steps(1, 2)
    names = [operation.name for operation in training.recorder.operations]
    assert names == ["all_to_all", "all_gather"]
    assert training.recorder.bytes_sent == 2 * 3 * compressor.wire_bytes(padded // num_workers)


def test_a_grad_scaler_that_the_engine_does_not_know_is_refused():
    training = Training(1, QAdam(warmup_steps=1), adam)
    training.steps(0, 1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(training.model(torch.zeros(1, 1, SIZE)).sum()).backward()
    with pytest.raises(ValueError, match="grad_scaler=scaler"):
        scaler.step(training.optimizer)


@pytest.mark.parametrize(
    ("make_optimizer", "message"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "torch.optim.Adam or AdamW, got SGD"),
        (lambda p: torch.optim.RAdam(p), "got RAdam"),
        (lambda p: torch.optim.Adam(p, amsgrad=True), "amsgrad=True"),
        (lambda p: torch.optim.AdamW(p, maximize=True), "maximize=True"),
        (lambda p: torch.optim.Adam(p[:1]), r"shape \(2, 5\) is not in the optimizer"),
    ],
)
def test_an_optimizer_that_it_cannot_continue_is_refused(make_optimizer, message):
    with pytest.raises(ValueError, match=message):
        Training(2, QAdam(), make_optimizer, SIZE - 5, 5)


def test_no_warm_up_is_refused():
    with pytest.raises(ValueError, match="got 0"):
        QAdam(warmup_steps=0)


def test_few_biased_bits_without_error_feedback_warn():
    with pytest.warns(UserWarning, match="SignScale is biased and keeps 1 bits"):
        QAdam(compressor=SignScale())


def test_preconditioning_for_a_code_of_extremes_warns():
    with pytest.warns(UserWarning, match="spaces its levels by a chunk's extremes"):
        QAdam(precondition=True)


@pytest.mark.parametrize("precondition", [False, True])
def test_when_training_ends_adam_has_its_moments_back(precondition):
    """One more step of ours, and one of torch's own Adam on the mean gradient, end alike."""
    algorithm = QAdam(warmup_steps=WARMUP, compressor=Lossless(), precondition=precondition)
    expected = Training(3, algorithm, adamw, 20, SIZE - 20).steps(0, NUM_STEPS + 1)
    training = Training(3, algorithm, adamw, 20, SIZE - 20)
    x = training.steps(0, NUM_STEPS)
    training.engine.close()
    gradient = sum(x[0] - target(NUM_STEPS, rank) for rank in range(3)) / 3
    parts = gradient.split([20, SIZE - 20])
    for parameter, part in zip(training.model.parameters(), parts, strict=True):
        moments = training.optimizer.state[parameter]
        # Adam would renew v, which we have frozen: let it be renewed by itself.
        part_squared = moments["exp_avg_sq"] / (1 - BETAS[1] ** NUM_STEPS)
        moments["exp_avg_sq"] = part_squared * (1 - BETAS[1] ** (NUM_STEPS + 1)) / BETAS[1]
        moments["exp_avg_sq"] -= (1 - BETAS[1]) / BETAS[1] * part.square()
        parameter.grad = part.expand(3, -1).clone()
    algorithm.on_close(training.context)  # a second end leaves what is the optimizer's by now
    training.optimizer.step()
    torch.testing.assert_close(training.x, expected, rtol=0, atol=1e-5)
