"""fp16 with a GradScaler and bf16 by autocast."""

import threading
from contextlib import nullcontext
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bagua_algos
from bagua_algos import Algorithm, AllReduce, ByteGrad, LocalSGD
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.cases import batch, losses, make_model, on_worker_axis

SCALE = 2.0**8
LEARNING_RATE = 0.1


@dataclass(frozen=True, kw_only=True)
class Recording(Algorithm):
    """Keeps what it is shown, and doubles it."""

    seen: list[torch.Tensor] = field(default_factory=list)
    ended_steps: list[int] = field(default_factory=list)

    def on_bucket_ready(self, context, bucket):
        self.seen.append(bucket.gradients[:, : bucket.numel].clone())
        bucket.gradients.mul_(2)

    def on_step_end(self, context):
        self.ended_steps.append(context.step)


class Scaled:
    """One weight on one worker, with gradients of one's choice."""

    def __init__(self, **options) -> None:
        self.model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.model.weight)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE, **options)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
        self.algorithm = Recording()
        self.engine = Engine(
            self.model,
            self.optimizer,
            self.algorithm,
            StackedCommunicator(1),
            grad_scaler=self.scaler,
        )

    def backward(self, gradient: float) -> None:
        self.scaler.scale(gradient * self.model(torch.ones(1, 1)).sum()).backward()

    def step(self, gradient: float) -> None:
        self.optimizer.zero_grad()
        self.backward(gradient)
        self.scaler.step(self.optimizer)
        self.scaler.update()


def test_algorithms_see_gradients_and_the_scaler_sees_scaled_ones():
    training = Scaled()
    training.backward(3.0)
    assert [seen.item() for seen in training.algorithm.seen] == [3.0]
    assert training.model.weight.grad.item() == 2 * 3.0 * SCALE


def test_backward_passes_that_all_synchronise_add_up():
    training = Scaled()
    for _ in range(2):
        training.backward(3.0)
    assert [seen.item() for seen in training.algorithm.seen] == [3.0, 2 * 3.0 + 3.0]


@pytest.mark.parametrize("fused", [False, True])
def test_an_overflow_is_no_step(fused):
    """A fused optimizer's step() is called even so, and does nothing."""
    training = Scaled(fused=fused)
    for gradient in (1.0, float("inf"), float("nan"), 2.0):
        training.step(gradient)
    assert training.algorithm.ended_steps == [0, 1]
    assert training.engine.context.step == 2
    assert [seen.item() for seen in training.algorithm.seen] == [1.0, 2.0]
    assert training.scaler.get_scale() == SCALE / 4
    torch.testing.assert_close(training.model.weight.item(), -LEARNING_RATE * 2 * (1 + 2))


def test_an_overflow_in_an_earlier_micro_batch_is_found():
    training = Scaled()
    with training.engine.no_sync():
        training.backward(float("inf"))
    training.backward(1.0)
    assert training.algorithm.seen == []
    training.scaler.step(training.optimizer)
    assert training.model.weight.item() == 0


@pytest.mark.parametrize("algorithm", [LocalSGD(), ByteGrad(error_feedback=True)])
def test_a_scaler_that_was_not_given_is_refused(algorithm):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    Engine(model, optimizer, algorithm, StackedCommunicator(1))
    for scaler in (torch.amp.GradScaler("cpu", enabled=False), torch.amp.GradScaler("cpu")):
        scaler.scale(model(batch(0, 0)[0]).sum()).backward()
        if scaler.is_enabled():
            with pytest.raises(ValueError, match=r"distribute\(\.\.\., grad_scaler=scaler\)"):
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)


@pytest.mark.parametrize("algorithm", [AllReduce(), ByteGrad()])
def test_a_mean_needs_no_scaler_to_be_given(algorithm):
    """Worker 2's infinity reaches everyone's gradients, and scaler."""
    communicator = StackedCommunicator(4)
    model = on_worker_axis(make_model(), communicator)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    engine = Engine(model, optimizer, algorithm, communicator)
    factor_w = torch.tensor([1.0, 1.0, float("inf"), 1.0])
    x_wb = torch.stack([batch(0, rank)[0] for rank in range(4)])
    (model(x_wb).sum((1, 2)) * factor_w).sum().backward()
    for bucket in engine.context.buckets:
        assert bucket.gradients[:, : bucket.numel].isfinite().logical_not().any(1).all()


def test_an_overflow_on_one_worker_is_one_on_all():
    """Each worker's own scaler has to find it."""
    communicator = StackedCommunicator(4)
    model = on_worker_axis(make_model(), communicator)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    Engine(model, optimizer, AllReduce(), communicator, grad_scaler=scaler)
    factor_w = torch.tensor([1.0, 1.0, float("inf"), 1.0])
    x_wb = torch.stack([batch(0, rank)[0] for rank in range(4)])
    scaler.scale((model(x_wb).sum((1, 2)) * factor_w).sum()).backward()
    assert all(parameter.grad.isinf().all() for parameter in model.parameters())


@pytest.mark.parametrize("enabled", [True, False])
def test_only_a_scaler_that_is_enabled_holds_buckets_until_backward_has_ended(enabled):
    launched = threading.Event()

    @dataclass(frozen=True, kw_only=True)
    class Launching(Algorithm):
        def on_bucket_ready(self, context, bucket):
            launched.set()

    seen = []
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", enabled=enabled)
    Engine(
        model, optimizer, Launching(), StackedCommunicator(1), bucket_bytes=1, grad_scaler=scaler
    )
    timeout_s = 0.2 if enabled else 20
    model[0].register_full_backward_hook(lambda *_: seen.append(launched.wait(timeout_s)))
    scaler.scale(model(torch.ones(2, 3, requires_grad=True)).sum()).backward()
    assert seen == [not enabled]
    assert launched.is_set()


def test_fp16_overflows_its_way_down_to_a_scale_that_trains():
    communicator = StackedCommunicator(4)
    model = on_worker_axis(make_model(), communicator)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    bagua_algos.distribute(model, optimizer, ByteGrad(), communicator, grad_scaler=scaler)
    history = []
    for step in range(60):
        x_wb, y_wb = (torch.stack(p) for p in zip(*(batch(step, r) for r in range(4)), strict=True))
        with torch.autocast("cpu", torch.float16):
            loss = losses(model(x_wb).float(), y_wb)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        history.append(loss.item())
    bagua_algos.release(model)
    assert scaler.get_scale() < 2.0**30
    assert sum(history[-5:]) < 0.95 * sum(history[:5])


def test_autocast_on_one_worker_is_autocast_without_us():
    plain, model = make_model(), make_model()
    optimizers = [torch.optim.SGD(m.parameters(), lr=LEARNING_RATE) for m in (plain, model)]
    Engine(model, optimizers[1], AllReduce(), StackedCommunicator(1))
    for step in range(5):
        x_b, y_b = batch(step, 0)
        for m, optimizer in zip((plain, model), optimizers, strict=True):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(m(x_b), y_b)
            loss.backward()
            optimizer.step()
    for expected, parameter in zip(plain.parameters(), model.parameters(), strict=True):
        assert parameter.grad.dtype == torch.float32
        assert torch.equal(parameter, expected)


def two_layers(trained: int) -> tuple[nn.Sequential, torch.optim.SGD, torch.amp.GradScaler]:
    """With an optimizer of one of them alone, and a scaler."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model[trained].parameters(), lr=LEARNING_RATE)
    return model, optimizer, torch.amp.GradScaler("cpu", init_scale=SCALE)


def weights_by_a_layer(
    trained: int, *, has_two: bool, num_micro: int, is_distributed: bool
) -> list[torch.Tensor]:
    """After six steps, of which the second and third overflow; and the scale."""
    model, optimizer, scaler = two_layers(trained)
    workers, no_sync = StackedCommunicator(1), nullcontext
    if is_distributed:
        no_sync = Engine(model, optimizer, AllReduce(), workers, grad_scaler=scaler).no_sync
    other = torch.optim.SGD(model[1 - trained].parameters(), lr=0.01)
    optimizers = [optimizer, other] if has_two else [optimizer]
    for step in range(6):
        for own in optimizers:
            own.zero_grad()
        for number in range(num_micro):
            loss = model(torch.randn(5, 3)).square().mean()
            with no_sync() if number + 1 < num_micro else nullcontext():
                scaler.scale(loss * torch.inf if step in (1, 2) else loss).backward()
        for own in optimizers:
            scaler.step(own)
        scaler.update()
    return [*model.parameters(), torch.tensor(scaler.get_scale())]


@pytest.mark.parametrize("num_micro", [1, 2])
@pytest.mark.parametrize("has_two", [False, True])
@pytest.mark.parametrize("trained", [0, 1])
def test_an_overflow_ends_with_its_step_also_in_a_layer_that_nobody_clears(
    trained, has_two, num_micro
):
    """The last layer has the first gradient of each pass."""
    expected, weights = (
        weights_by_a_layer(trained, has_two=has_two, num_micro=num_micro, is_distributed=own)
        for own in (False, True)
    )
    assert expected[-1] == SCALE / 4
    assert all(map(torch.equal, weights, expected))


def test_an_overflow_stays_until_the_scaler_has_seen_it():
    """Of a step with two passes, for another optimizer, which clears its own."""
    model, optimizer, scaler = two_layers(trained=0)
    Engine(model, optimizer, AllReduce(), StackedCommunicator(1), grad_scaler=scaler)
    for factor in (torch.inf, 1.0):
        optimizer.zero_grad()
        scaler.scale(factor * model(torch.ones(5, 3)).square().mean()).backward()
    assert not any(parameter.grad.isfinite().any() for parameter in model[1].parameters())


def test_an_overflow_ends_on_a_worker_without_examples_too():
    model, optimizer, scaler = two_layers(trained=1)
    engine = Engine(model, optimizer, AllReduce(), StackedCommunicator(1), grad_scaler=scaler)
    scaler.scale(model(torch.full((5, 3), torch.inf)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    engine.empty_backward()
    assert not any(parameter.grad.any() for parameter in model.parameters())


def test_a_worker_without_any_examples_steps_by_a_scaler():
    """No loss of its own has given the scaler its first scale."""
    model, optimizer, scaler = two_layers(trained=1)
    engine = Engine(model, optimizer, AllReduce(), StackedCommunicator(1), grad_scaler=scaler)
    scale = scaler.get_scale()
    engine.empty_backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == scale
    assert engine.context.step == 1


def test_a_scale_that_has_fallen_to_zero_is_told():
    training = Scaled()
    training.step(float("inf"))
    training.scaler.update(0.0)
    with pytest.raises(ValueError, match=r"^the GradScaler's scale has fallen to 0, because "):
        training.backward(1.0)
