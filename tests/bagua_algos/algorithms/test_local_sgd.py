import pytest
import torch
from torch import nn

from bagua_algos import AllReduce
from bagua_algos.algorithms.local_sgd import LocalSGD
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.compressors import SignScale
from bagua_algos.compressors.minmax_uint8 import MinMaxUInt8
from bagua_algos.engine.engine import Engine
from bagua_algos.outer_optimizer import Nesterov, SlowMo
from tests.bagua_algos.cases import (
    average_gradients_,
    backward,
    make_model,
    make_optimizer,
    on_worker_axis,
    take_step,
)
from tests.bagua_algos.quadratic import (
    SIZE,
    CompressedMean,
    Training,
    interrupted,
    min_max,
    start,
    target,
)

NUM_STEPS, LR = 24, 0.1


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=LR, momentum=0.5)


class Mean:
    """Outer optimizers in plain torch: from x0 and the mean of all x_i to the next x0."""

    def __call__(self, x0, mean, inner_lr):
        return mean


class PlainSlowMo:
    def __init__(self):
        self.u = 0.0

    def __call__(self, x0, mean, inner_lr):
        self.u = 0.7 * self.u + (x0 - mean) / inner_lr
        return x0 - 0.8 * inner_lr * self.u


class TorchNesterov:
    def __init__(self):
        self.optimizer = None

    def __call__(self, x0, mean, inner_lr):
        if self.optimizer is None:
            self.x = nn.Parameter(x0.clone())
            self.optimizer = torch.optim.SGD([self.x], lr=0.7, momentum=0.9, nesterov=True)
        self.x.grad = x0 - mean
        self.optimizer.step()
        return self.x.detach().clone()


OUTER = {
    "mean": (None, Mean),
    "SlowMo": (SlowMo(lr=0.8, momentum=0.7), PlainSlowMo),
    "Nesterov": (Nesterov(), TorchNesterov),
}


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def oracle(num_workers, interval, start_step, outer):
    """N models in a loop, each with its optimizer and a falling learning rate."""
    models = [make_model() for _ in range(num_workers)]
    optimizers = [make_optimizer(model) for model in models]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(o, 0.95) for o in optimizers]
    x0 = flat(models[0])
    for step in range(NUM_STEPS):
        for rank, model in enumerate(models):
            backward(model, step, rank)
        if step < start_step:
            average_gradients_(models)
        for optimizer in optimizers:
            optimizer.step()
        if step + 1 == start_step:
            x0 = flat(models[0])
        if step >= start_step and (step + 1 - start_step) % interval == 0:
            mean = sum(flat(model) for model in models) / num_workers
            x0 = outer(x0, mean, optimizers[0].param_groups[0]["lr"])
            for model in models:
                nn.utils.vector_to_parameters(x0.clone(), model.parameters())
        for schedule in schedules:
            schedule.step()
    return torch.stack([flat(model) for model in models])


def train(num_workers, algorithm):
    communicator = StackedCommunicator(num_workers)
    model = on_worker_axis(make_model(), communicator)
    optimizer = make_optimizer(model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    engine = Engine(model, optimizer, algorithm, communicator, bucket_bytes=4096)
    assert len(engine.context.buckets) > 1
    for step in range(NUM_STEPS):
        take_step(model, optimizer, step, communicator.ranks)
        schedule.step()
    return torch.cat([p.detach().reshape(num_workers, -1) for p in model.parameters()], 1)


@pytest.mark.parametrize("name", OUTER)
@pytest.mark.parametrize(
    ("num_workers", "interval", "start_step"),
    [(2, 5, 0), (3, 4, 0), (4, 6, 7), (8, 3, 2), (4, 1, 0), (2, 10, 30)],
)
def test_it_is_what_an_oracle_of_plain_torch_computes(name, num_workers, interval, start_step):
    outer, plain = OUTER[name]
    algorithm = LocalSGD(interval=interval, start_step=start_step, outer=outer)
    expected = oracle(num_workers, interval, start_step, plain())
    torch.testing.assert_close(train(num_workers, algorithm), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("error_feedback", [False, True])
@pytest.mark.parametrize("num_workers", [1, 2, 3, 4, 8])
def test_codes_of_the_outer_gradient_are_averaged(num_workers, error_feedback):
    algorithm = LocalSGD(
        interval=3, outer=Nesterov(), compressor=MinMaxUInt8(), error_feedback=error_feedback
    )
    mean, outer = CompressedMean(min_max, num_workers, error_feedback), TorchNesterov()
    xs = [start().requires_grad_() for _ in range(num_workers)]
    optimizers = [sgd([x]) for x in xs]
    x0 = start()
    for step in range(NUM_STEPS):
        for rank, (x, optimizer) in enumerate(zip(xs, optimizers, strict=True)):
            x.grad = x.detach() - target(step, rank)
            optimizer.step()
        if step % 3 == 2:
            x0 = outer(x0, x0 - mean([x0 - x.detach() for x in xs]), LR)
            for x in xs:
                x.data.copy_(x0)
    ours = Training(num_workers, algorithm, sgd).steps(0, NUM_STEPS)
    # A code that is rounded otherwise at a tie; a lost one would be a hundred times as much.
    torch.testing.assert_close(ours, x0.expand_as(ours), rtol=0, atol=0.01)
    assert (ours - x0).abs().median() < 1e-5
    assert torch.equal(ours, ours[:1].expand_as(ours))


def test_one_worker_is_plain_torch_bit_for_bit():
    expected = oracle(1, 1, NUM_STEPS + 1, Mean())
    assert torch.equal(train(1, LocalSGD(interval=5)), expected)


def test_each_step_it_is_all_reduce_where_the_optimizer_has_no_momentum():
    def plain(parameters):
        return torch.optim.SGD(parameters, lr=LR, weight_decay=0.01)

    every_step = Training(4, LocalSGD(interval=1), plain).steps(0, NUM_STEPS)
    all_reduced = Training(4, AllReduce(), plain).steps(0, NUM_STEPS)
    torch.testing.assert_close(every_step, all_reduced, rtol=0, atol=1e-5)


@pytest.mark.parametrize("outer", [SlowMo(momentum=0), Nesterov(lr=1, momentum=0)])
def test_without_outer_momentum_it_is_the_plain_mean(outer):
    with_outer = Training(3, LocalSGD(interval=4, outer=outer), sgd).steps(0, NUM_STEPS)
    plain = Training(3, LocalSGD(interval=4), sgd).steps(0, NUM_STEPS)
    torch.testing.assert_close(with_outer, plain, rtol=0, atol=1e-5)


def test_each_parameter_group_has_its_own_learning_rate_in_slowmo():
    """Against one training a rate: groups that share a bucket do not mix."""
    sizes = (11, 5, SIZE - 16)

    def parts(*rates):
        training = Training(
            3,
            LocalSGD(interval=4, outer=SlowMo()),
            lambda parameters: torch.optim.SGD(
                [{"params": [p], "lr": lr} for p, lr in zip(parameters, rates, strict=True)]
            ),
            *sizes,
        )
        schedule = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.9)
        return training.steps(0, NUM_STEPS, schedule.step).split(sizes, 1)

    mixed, slow, fast = parts(0.1, 0.01, 0.1), parts(0.01, 0.01, 0.01), parts(0.1, 0.1, 0.1)
    for part, expected in zip(mixed, [fast[0], slow[1], fast[2]], strict=True):
        torch.testing.assert_close(part, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("outer", [None, SlowMo(), Nesterov()])
def test_workers_agree_after_a_meeting_and_not_before(outer):
    training = Training(4, LocalSGD(interval=3, start_step=2, outer=outer), sgd)
    agreed = []
    for step in range(8):
        x = training.steps(step, step + 1)
        agreed.append(torch.equal(x, x[:1].expand_as(x)))
    assert agreed == [True, True, False, False, True, False, False, True]
    x = training.steps(8, 9)
    with training.engine.consensus():
        torch.testing.assert_close(training.x, x.mean(0).expand_as(x))
    assert torch.equal(training.x, x)


@pytest.mark.parametrize(
    "algorithm",
    [
        LocalSGD(interval=5),
        LocalSGD(interval=5, start_step=50),
        LocalSGD(interval=5, outer=SlowMo()),
        LocalSGD(interval=5, outer=Nesterov()),
        LocalSGD(interval=5, outer=Nesterov(), compressor=MinMaxUInt8(), error_feedback=True),
    ],
)
def test_a_quadratic_converges(algorithm):
    training = Training(4, algorithm, sgd, noise=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.98)
    x = training.steps(0, 300, schedule.step)
    assert (start() - torch.arange(SIZE) / SIZE).abs().max() > 1.9
    assert (x - torch.arange(SIZE) / SIZE).abs().max() < 0.05


@pytest.mark.parametrize("at", [3, 4, 11])
def test_a_checkpoint_continues_bit_for_bit(at):
    algorithm = LocalSGD(
        interval=5, start_step=4, outer=SlowMo(), compressor=MinMaxUInt8(), error_feedback=True
    )
    unbroken = Training(4, algorithm, sgd).steps(0, NUM_STEPS)
    resumed = interrupted(lambda: Training(4, algorithm, sgd), at, NUM_STEPS)
    assert torch.equal(resumed, unbroken)


def test_the_same_run_gives_the_same_bits():
    algorithm = LocalSGD(interval=4, outer=SlowMo())
    assert torch.equal(train(3, algorithm), train(3, algorithm))


def test_bytes_are_as_predicted():
    """Nothing between meetings; an all-reduce of the padded weights at each, or two codes."""
    padded, compressor = 4 * 16, MinMaxUInt8()
    all_reduce = 2 * 3 / 4 * 4 * padded
    for algorithm, num_gradients, each_meeting in [
        (LocalSGD(interval=5), 0, all_reduce),
        (LocalSGD(interval=5, start_step=7), 7, all_reduce),
        (LocalSGD(interval=5, outer=Nesterov()), 0, all_reduce),
        (
            LocalSGD(interval=5, outer=Nesterov(), compressor=compressor),
            0,
            2 * 3 * compressor.wire_bytes(padded // 4),
        ),
    ]:
        training = Training(4, algorithm, sgd)
        training.steps(0, NUM_STEPS)
        num_meetings = (NUM_STEPS - num_gradients) // 5
        expected = num_gradients * all_reduce + num_meetings * each_meeting
        assert training.recorder.bytes_sent == expected


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalSGD(interval=0), "interval must be a whole number of at least 1, got 0"),
        (lambda: LocalSGD(start_step=-1), "start_step must be a whole number .* 0, got -1"),
        (lambda: LocalSGD(compressor=MinMaxUInt8()), "no outer optimizer"),
        (lambda: LocalSGD(outer=SlowMo(), error_feedback=True), "needs a compressor"),
        (lambda: SlowMo(lr=0), "outer lr must be more than 0 and finite, got 0"),
        (lambda: Nesterov(lr=float("inf")), "outer lr must be more than 0 and finite, got inf"),
        (lambda: Nesterov(momentum=1.0), r"outer momentum must be in \[0, 1\), got 1\.0"),
    ],
)
def test_what_no_run_can_have_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class Plain:
    """An outer optimizer of one's own, which only steps: to the mean."""

    def step_(self, anchor, outer_gradient, momentum, inner_lr):
        anchor.sub_(outer_gradient)


def test_an_outer_optimizer_of_ones_own_need_only_step():
    own, same = (
        Training(2, LocalSGD(interval=2, outer=outer), sgd).steps(0, 4)
        for outer in (Plain(), Nesterov(lr=1, momentum=0))
    )
    assert torch.equal(own, same)


def test_slowmo_refuses_a_learning_rate_of_zero():
    training = Training(
        2, LocalSGD(interval=1, outer=SlowMo()), lambda p: torch.optim.SGD(p, lr=0.0)
    )
    with pytest.raises(ValueError, match="learning rate, which is 0"):
        training.steps(0, 1)


def test_weights_are_what_they_were_where_slowmo_refuses_one_groups_rate():
    """A script may catch the error and save them."""

    def two_groups(parameters):
        first, second = parameters
        return torch.optim.SGD([{"params": [first], "lr": 0.5}, {"params": [second], "lr": 0.0}])

    training = Training(2, LocalSGD(interval=1, outer=SlowMo()), two_groups, 20, SIZE - 20)
    with pytest.raises(ValueError, match="learning rate, which is 0"):
        training.steps(0, 1)
    rates = torch.where(torch.arange(SIZE) < 20, 0.5, 0.0)
    for rank, x in enumerate(training.x):
        torch.testing.assert_close(x, start() - rates * (start() - target(0, rank)))


def test_a_weight_outside_the_optimizer_is_refused_with_an_outer_optimizer():
    with pytest.raises(ValueError, match=r"shape \(2, 5\) is not in the optimizer"):
        Training(2, LocalSGD(outer=SlowMo()), lambda p: sgd(p[:1]), SIZE - 5, 5)


def test_few_biased_bits_without_error_feedback_warn():
    with pytest.warns(UserWarning, match="SignScale is biased and keeps 1 bits"):
        LocalSGD(outer=Nesterov(), compressor=SignScale())


@pytest.mark.parametrize(
    ("outer", "family"), [(None, "local SGD"), (SlowMo(), "local SGD"), (Nesterov(), "DiLoCo")]
)
def test_reports_call_it_diloco_with_its_outer_optimizer_alone(outer, family):
    assert LocalSGD(outer=outer).family == family
