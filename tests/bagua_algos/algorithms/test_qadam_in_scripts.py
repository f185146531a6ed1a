"""QAdam where a script accumulates gradients, leaves a step out, saves and loads its optimizer."""

import copy
import io
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bagua_algos.algorithms.qadam import QAdam
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.compressors import QSGD, MinMaxUInt8, SignScale
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.checkpoint import carry_over
from tests.bagua_algos.quadratic import SIZE, Training

LR, WARMUP, NUM_STEPS = 0.03, 6, 20
FIRST, SECOND = 1000, 2000  # two micro-batches of a step

one_bit = QAdam(warmup_steps=WARMUP, compressor=SignScale(), error_feedback=True)
preconditioned = QAdam(
    warmup_steps=WARMUP, compressor=SignScale(), error_feedback=True, precondition=True
)
every_kind = pytest.mark.parametrize(
    "algorithm",
    [
        QAdam(warmup_steps=WARMUP),
        QAdam(warmup_steps=WARMUP, compressor=QSGD()),
        QAdam(warmup_steps=WARMUP, error_feedback=True, compressor=MinMaxUInt8()),
        one_bit,
        preconditioned,
    ],
    ids=["int8", "qsgd", "int8 with error feedback", "1 bit", "1 bit, preconditioned"],
)


def adam(parameters):
    return torch.optim.Adam(parameters, lr=LR, betas=(0.8, 0.95), weight_decay=0.1)


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=LR, betas=(0.8, 0.95), eps=1e-4, weight_decay=0.1)


def accumulate(training, *, in_no_sync):
    for step in range(NUM_STEPS):
        training.optimizer.zero_grad()
        if in_no_sync and step >= WARMUP:  # the mean gradient of warm-up is rounded otherwise
            with training.engine.no_sync():
                training.backward(FIRST + step)
        else:
            training.backward(FIRST + step)
        training.backward(SECOND + step)
        training.optimizer.step()
    return training.x


@every_kind
def test_accumulation_without_no_sync_is_the_same(algorithm):
    """Bit for bit: momentum and residuals move once a step, however many backward passes it has."""
    with_it = accumulate(Training(3, algorithm, adam, 20, SIZE - 20), in_no_sync=True)
    without = accumulate(Training(3, algorithm, adam, 20, SIZE - 20), in_no_sync=False)
    assert torch.equal(without, with_it)


@every_kind
def test_a_backward_whose_step_is_left_out_leaves_nothing_behind(algorithm):
    plain, skipping = (Training(3, algorithm, adamw) for _ in range(2))
    plain.steps(0, WARMUP + 3)
    skipping.steps(0, WARMUP + 3)
    skipping.backward(FIRST)
    assert torch.equal(skipping.steps(WARMUP + 3, NUM_STEPS), plain.steps(WARMUP + 3, NUM_STEPS))


def test_a_step_without_a_backward_changes_nothing():
    training = Training(2, one_bit, adamw)
    x = training.steps(0, WARMUP + 3)
    training.optimizer.zero_grad()
    training.optimizer.step()
    assert torch.equal(training.x, x)
    others = Training(2, one_bit, adamw)
    others.steps(0, WARMUP + 3)
    assert torch.equal(training.steps(WARMUP + 3, NUM_STEPS), others.steps(WARMUP + 3, NUM_STEPS))


def saved(optimizer):
    """Its state_dict, through a file that holds tensors and numbers alone."""
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("make_optimizer", [adam, adamw])
@every_kind
def test_a_script_resumes_from_weights_and_optimizer_alone(algorithm, make_optimizer):
    """But for rounding, where there are no residuals and no draws: those begin again."""
    stop = WARMUP + 5
    unbroken, resumed = (Training(3, algorithm, make_optimizer, 20, SIZE - 20) for _ in range(2))
    unbroken.steps(0, stop)
    resumed.model.load_state_dict(unbroken.model.state_dict())
    resumed.optimizer.load_state_dict(saved(unbroken.optimizer))
    assert not resumed.optimizer.state  # the moments are the algorithm's, and not in use twice
    for ours, theirs in zip(
        resumed.context.state.moments, unbroken.context.state.moments, strict=True
    ):
        for found, expected in (
            (ours.momentum.m, theirs.momentum.m),
            (ours.denominator, theirs.denominator),
        ):
            found, expected = found[:, :SIZE], expected[:, :SIZE]  # the rest is padding
            torch.testing.assert_close(found, expected, rtol=4e-7, atol=0)
    if algorithm == QAdam(warmup_steps=WARMUP):
        x = unbroken.steps(stop, stop + 3)
        torch.testing.assert_close(resumed.steps(stop, stop + 3), x, rtol=0, atol=1e-6)


@every_kind
def test_the_state_is_what_torchs_own_adam_goes_on_from(algorithm):
    """What Adam would correct its moments to is m and v as QAdam has them."""
    training = Training(2, algorithm, adamw, 20, SIZE - 20)
    training.steps(0, WARMUP)
    before = copy.deepcopy(training.context.state)
    training.steps(WARMUP, NUM_STEPS)
    state = saved(training.optimizer)["state"]
    moments = training.context.state.moments[0]
    columns = {0: slice(SIZE - 20, SIZE), 1: slice(SIZE - 20)}  # buckets begin with the last
    for index, parameter in enumerate(training.model.parameters()):
        own = state[index]
        assert own["step"] == NUM_STEPS
        assert own["exp_avg"].shape == own["exp_avg_sq"].shape == parameter.shape
        denominator = (own["exp_avg_sq"] / (1 - 0.95**NUM_STEPS)).sqrt() + 1e-4
        expected = before.moments[0].denominator[:, columns[index]]
        torch.testing.assert_close(denominator.reshape(2, -1), expected)
        m = moments.momentum.m[:, columns[index]] * (expected if algorithm.precondition else 1)
        torch.testing.assert_close(own["exp_avg"].reshape(2, -1), m)


@every_kind
def test_saving_and_loading_in_place_change_no_bit(algorithm):
    unbroken, saving = (Training(3, algorithm, adam) for _ in range(2))
    for training in (unbroken, saving):
        training.steps(0, WARMUP + 5)
    saving.optimizer.load_state_dict(saved(saving.optimizer))
    x = unbroken.steps(WARMUP + 5, NUM_STEPS)
    assert torch.equal(saving.steps(WARMUP + 5, NUM_STEPS), x)


def test_loaded_moments_of_another_training_replace_its_own():
    donor, training = (Training(2, one_bit, adam) for _ in range(2))
    donor.steps(0, NUM_STEPS)
    training.steps(0, WARMUP + 1)
    training.optimizer.load_state_dict(saved(donor.optimizer))
    [ours], [theirs] = training.context.state.moments, donor.context.state.moments
    torch.testing.assert_close(ours.momentum.m[:, :SIZE], theirs.momentum.m[:, :SIZE])
    assert not ours.momentum.residuals.worker.any()
    assert training.context.state.num_steps == NUM_STEPS


@pytest.mark.parametrize("num_loaded", [0, 2, WARMUP - 1, WARMUP, WARMUP + 3])
def test_loaded_steps_count_towards_warm_up(num_loaded):
    """Of torch's own Adam, loaded before or after the model is distributed."""
    alone = Training(1, QAdam(warmup_steps=100), adam)
    alone.steps(0, num_loaded)

    def loaded(parameters):
        optimizer = adam(parameters)
        optimizer.load_state_dict(saved(alone.optimizer))
        return optimizer

    before, after = Training(1, one_bit, loaded), Training(1, one_bit, adam)
    after.optimizer.load_state_dict(saved(alone.optimizer))
    for training in (before, after):
        num_left = max(0, WARMUP - num_loaded)
        training.steps(0, num_left - 1)
        assert num_left == 0 or not training.context.state.moments
        training.steps(max(0, num_left - 1), num_left)
        assert training.context.state.moments
    assert torch.equal(before.x, after.x)


def test_a_state_of_fewer_steps_takes_it_back_to_warm_up():
    young, training = (Training(1, one_bit, adam) for _ in range(2))
    young.steps(0, 2)
    training.steps(0, NUM_STEPS)
    training.optimizer.load_state_dict(saved(young.optimizer))
    assert not training.context.state.moments
    training.steps(0, WARMUP - 3)
    assert not training.context.state.moments
    training.steps(0, 1)
    assert training.context.state.num_steps == WARMUP


def test_a_loaded_option_that_it_does_not_support_is_refused():
    other = adam([torch.zeros(SIZE, requires_grad=True)])
    other.param_groups[0]["amsgrad"] = True
    with pytest.raises(ValueError, match="amsgrad=True"):
        Training(1, one_bit, adam).optimizer.load_state_dict(other.state_dict())


def two_layers():
    """Of one worker: body and head."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def train(model, optimizer, num_steps):
    for step in range(num_steps):
        optimizer.zero_grad()
        x_bi = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
        model(x_bi).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("num_frozen", [2, 4])
def test_a_thawed_layer_is_warmed_up_before_the_switch(num_frozen):
    model = two_layers()
    body = model[0]
    body.requires_grad_(False)
    optimizer, algorithm = adam(model.parameters()), QAdam(warmup_steps=2)
    engine = Engine(model, optimizer, algorithm, StackedCommunicator(1))
    train(model, optimizer, num_frozen)
    engine.close()
    body.requires_grad_(True)
    engine = Engine(model, optimizer, algorithm, StackedCommunicator(1))
    train(model, optimizer, 1)
    assert not engine.context.state.moments
    train(model, optimizer, 1)
    assert engine.context.state.num_steps == num_frozen + 2
    before = [p.detach().clone() for p in model.parameters()]
    train(model, optimizer, 1)
    for parameter, old in zip(model.parameters(), before, strict=True):
        assert not torch.equal(parameter, old)


@pytest.mark.parametrize("take", ["one", "all"])
def test_a_gradient_that_is_taken_away_after_backward_is_refused_after_the_switch(take):
    """In warm-up Adam leaves that layer as it is, as in plain torch."""
    plain, model = two_layers(), two_layers()
    optimizers = [adam(one.parameters()) for one in (plain, model)]
    Engine(model, optimizers[1], QAdam(warmup_steps=2), StackedCommunicator(1))

    def begin(one, step):
        one.zero_grad()
        x_bi = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
        one(x_bi).square().sum().backward()
        if take == "one":
            one[1].weight.grad = None
        else:
            one.zero_grad()

    train(plain, optimizers[0], 1)
    train(model, optimizers[1], 1)
    for one, optimizer in zip((plain, model), optimizers, strict=True):
        begin(one, 1)
        optimizer.step()
    assert all(map(torch.equal, plain.parameters(), model.parameters()))
    optimizers[1].step()  # without a backward pass
    begin(model, 2)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(
        ValueError, match=r"taken away between backward\(\) and the step, and QAdam"
    ):
        optimizers[1].step()
    assert all(map(torch.equal, model.parameters(), before))


@pytest.mark.parametrize("find", [False, True])
def test_after_the_switch_a_layer_may_be_unused_and_gradients_may_be_zeros(find):
    model = two_layers()
    optimizer = adam(model.parameters())
    workers = StackedCommunicator(1)
    Engine(model, optimizer, QAdam(warmup_steps=1), workers, find_unused_parameters=find)
    train(model, optimizer, 2)
    x_bi = torch.ones(5, 3)
    for _ in range(2):
        model[0](x_bi).sum().backward()
        assert (model[1].weight.grad is None) == find
        optimizer.step()
        optimizer.step()
        model(0 * x_bi).sum().mul(0).backward()
        model.zero_grad()
        optimizer.step()


def test_a_state_that_differs_in_one_layer_is_taken_up():
    model = two_layers()
    optimizer = adam(model.parameters())
    Engine(model, optimizer, QAdam(warmup_steps=2), StackedCommunicator(1))
    train(model, optimizer, 4)
    edited = saved(optimizer)
    edited["state"][3]["exp_avg"] += 1
    optimizer.load_state_dict(edited)
    assert saved(optimizer)["state"][3]["exp_avg"].equal(edited["state"][3]["exp_avg"])


@pytest.mark.parametrize(("before", "after"), [(1, 1 << 20), (1 << 20, 1)])
def test_a_state_of_warm_up_goes_on_in_other_buckets(before, after):
    def started(bucket_bytes):
        model = two_layers()
        optimizer = adam(model.parameters())
        engine = Engine(
            model,
            optimizer,
            QAdam(warmup_steps=3),
            StackedCommunicator(1),
            bucket_bytes=bucket_bytes,
        )
        return SimpleNamespace(model=model, optimizer=optimizer, engine=engine)

    stopped, resumed = started(before), started(after)
    train(stopped.model, stopped.optimizer, 2)
    carry_over(stopped, resumed)
    train(resumed.model, resumed.optimizer, 1)
    assert resumed.engine.context.state.moments
    old = [p.detach().clone() for p in resumed.model.parameters()]
    train(resumed.model, resumed.optimizer, 1)
    for parameter, value in zip(resumed.model.parameters(), old, strict=True):
        assert not torch.equal(parameter, value)


class Partly(nn.Module):
    """Uses one of its two layers, until it is told otherwise."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.used, self.unused = nn.Linear(3, 2), nn.Linear(3, 2)
        self.uses_all = False

    def forward(self, x_bi):
        y_bo = self.used(x_bi)
        return y_bo + self.unused(x_bi) if self.uses_all else y_bo


def partly(num_steps, warmup_steps=2):
    model = Partly()
    optimizer = adamw(model.parameters())
    algorithm = QAdam(warmup_steps=warmup_steps)
    engine = Engine(
        model, optimizer, algorithm, StackedCommunicator(1), find_unused_parameters=True
    )
    train(model, optimizer, num_steps)
    return SimpleNamespace(model=model, optimizer=optimizer, algorithm=algorithm, engine=engine)


def distributed_again(run):
    run.engine.close()
    run.engine = Engine(
        run.model,
        run.optimizer,
        run.algorithm,
        StackedCommunicator(1),
        find_unused_parameters=True,
    )
    return run


def resumed(run):
    other = partly(0, run.algorithm.warmup_steps)
    other.model.load_state_dict(run.model.state_dict())
    other.optimizer.load_state_dict(saved(run.optimizer))
    return other


resting = pytest.mark.filterwarnings("ignore:.* rest from here on")


@resting
@pytest.mark.parametrize("again", [distributed_again, resumed])
def test_what_rests_does_so_after_its_state_was_saved(again):
    run = partly(4)
    run.model.uses_all = True
    train(run.model, run.optimizer, 1)  # rests though it has a momentum now
    run = again(run)
    run.model.uses_all = True
    [moments] = run.engine.context.state.moments
    assert len(moments.resting) == 2
    before = copy.deepcopy(run.model)
    train(run.model, run.optimizer, 2)
    for parameter, old in zip(
        run.model.unused.parameters(), before.unused.parameters(), strict=True
    ):
        assert torch.equal(parameter, old)
    assert not torch.equal(run.model.used.weight, before.used.weight)


@resting
def test_loading_its_own_state_leaves_what_rests():
    run = partly(4)
    moments = run.engine.context.state.moments
    run.optimizer.load_state_dict(saved(run.optimizer))
    assert run.engine.context.state.moments is moments
    assert len(moments[0].resting) == 2


@resting
@pytest.mark.parametrize("again", [distributed_again, resumed])
def test_a_parameter_that_is_never_used_does_not_begin_the_warm_up_anew(again):
    run = again(partly(3, warmup_steps=5))
    train(run.model, run.optimizer, 1)
    run.optimizer.load_state_dict(saved(run.optimizer))
    assert not run.engine.context.state.moments
    train(run.model, run.optimizer, 1)
    assert run.engine.context.state.num_steps == 5


def test_a_parameter_of_fewer_steps_is_corrected_by_its_own():
    """What torch's Adam divides by after the warm-up, and what its momentum is worth."""
    model = nn.ModuleDict({"often": nn.Linear(3, 2), "seldom": nn.Linear(3, 2)})
    plain = copy.deepcopy(model)
    optimizer, plain_adam = adamw(model.parameters()), adamw(plain.parameters())
    engine = Engine(
        model,
        optimizer,
        QAdam(warmup_steps=WARMUP),
        StackedCommunicator(1),
        find_unused_parameters=True,
    )
    for step in range(WARMUP):
        used = ["often", "seldom"] if step == WARMUP - 1 else ["often"]
        for each, each_adam in ((model, optimizer), (plain, plain_adam)):
            each_adam.zero_grad()
            sum(each[name](torch.ones(1, 3)).square().sum() for name in used).backward()
            each_adam.step()
    [bucket], state = engine.context.buckets, engine.context.state
    [moments] = state.moments
    expected = dict(zip(model.parameters(), plain_adam.state.values(), strict=True))
    views = zip(
        bucket.parameters,
        bucket.views(moments.momentum.m),
        bucket.views(moments.denominator),
        strict=True,
    )
    for parameter, m, denominator in views:
        own = expected[parameter]
        steps = int(own["step"])
        v_hat = own["exp_avg_sq"] / (1 - 0.95**steps)
        torch.testing.assert_close(denominator, v_hat.sqrt() + 1e-4)
        m_hat = own["exp_avg"] / (1 - 0.8**steps)
        torch.testing.assert_close(m / (1 - 0.8**state.num_steps), m_hat)
