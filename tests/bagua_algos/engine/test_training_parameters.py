"""Which parameters and buffers take part, and what is refused."""

import copy

import pytest
import torch
from torch import nn
from torch._dynamo import compiled_autograd
from torch.utils.checkpoint import checkpoint

import bagua_algos
from bagua_algos import SGP, Algorithm, AllReduce, Decentralized, LocalSGD, QAdam
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.outer_optimizer import SlowMo
from bagua_algos.worker_axis.models import StackedModel
from tests.bagua_algos.engine.script.test_grad_scaler import WithAnother
from tests.bagua_algos.engine.test_engine import Recording, engine_of, layers


def test_a_parameter_that_is_unfrozen_later_is_refused():
    model = layers(3, 4, 5)
    model[0].requires_grad_(False)
    engine_of(model, AllReduce())
    model[0].requires_grad_(True)
    with pytest.raises(ValueError, match=r"shape \(4, 3\) was unfrozen after .* release\(\)"):
        model(torch.ones(2, 3)).sum().backward()


def of_frozen_body(algorithm: Algorithm) -> tuple[nn.Sequential, torch.optim.SGD]:
    """A head that trains on a frozen body."""
    model = layers(3, 4, 5)
    model[0].requires_grad_(False)
    _, optimizer = engine_of(model, algorithm)
    return model, optimizer


@pytest.mark.parametrize("algorithm", [AllReduce(), LocalSGD(interval=2), SGP()])
@pytest.mark.parametrize("way", ["frozen head", "loss of the body", "frozen again", "closure"])
def test_a_parameter_that_is_unfrozen_later_is_refused_where_nothing_else_gets_a_gradient(
    algorithm, way
):
    model, optimizer = of_frozen_body(algorithm)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    model.requires_grad_(True)
    model[1].requires_grad_(way != "frozen head")

    def train_body() -> None:
        used = model if way == "frozen head" else model[0]
        used(torch.ones(2, 3)).sum().backward()

    if way != "closure":
        train_body()
    model[0].requires_grad_(way != "frozen again")
    closure = train_body if way == "closure" else None
    before = model[0].weight.detach().clone()
    with pytest.raises(ValueError, match=r"'0.weight' .* frozen or not there when .* release\(\)"):
        optimizer.step(closure)
    assert torch.equal(model[0].weight, before)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_frozen_parameter_may_need_a_gradient_between_steps_and_may_have_an_old_one(set_to_none):
    model = layers(3, 4, 5)
    model(torch.ones(2, 3)).sum().backward()
    model[0].requires_grad_(False)
    _, optimizer = engine_of(model, AllReduce())
    for _ in range(2):
        optimizer.zero_grad(set_to_none=set_to_none)
        model(torch.ones(2, 3)).sum().backward()
        model.requires_grad_(False)  # as of a discriminator, while its generator trains
        optimizer.step()
        model[1].requires_grad_(True)
        model[0].requires_grad_(True)
        torch.autograd.grad(model[0](torch.ones(2, 3)).sum(), model[0].weight)
        model[0].requires_grad_(False)


def test_a_group_that_came_frozen_is_refused_when_it_trains():
    model = layers(3, 4, 5)
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    Engine(model, optimizer, AllReduce(), StackedCommunicator(1))
    model.append(nn.Linear(5, 5).requires_grad_(False))
    optimizer.add_param_group({"params": [*model[0].parameters(), *model[2].parameters()]})
    optimizer.step()
    for layer, x, name in ((model[0], torch.ones(2, 3), "0"), (model[2], torch.ones(2, 5), "2")):
        model.zero_grad()
        layer.requires_grad_(True)
        layer(x).sum().backward()
        with pytest.raises(ValueError, match=rf"'{name}.weight' .* a gradient, which is of this"):
            optimizer.step()


def test_a_parameter_that_is_frozen_later_is_refused():
    model = layers(3, 4, 5)
    engine_of(model, AllReduce())
    model[0].requires_grad_(False)
    with pytest.raises(ValueError, match=r"shape \(4, 3\) was frozen after"):
        model(torch.ones(2, 3)).sum().backward()


def test_released_and_distributed_again_an_unfrozen_parameter_trains():
    model = layers(3, 4, 5)
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bagua_algos.distribute(model, optimizer, AllReduce(), StackedCommunicator(1))
    bagua_algos.release(model)
    model[0].requires_grad_(True)
    before = model[0].weight.clone()
    bagua_algos.distribute(model, optimizer, AllReduce(), StackedCommunicator(1))
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    bagua_algos.release(model)
    assert not torch.equal(model[0].weight, before)


def test_a_model_without_anything_to_train_is_refused():
    model = layers(3, 4).requires_grad_(False)
    with pytest.raises(ValueError, match="no parameter that requires a gradient"):
        engine_of(model, AllReduce())


def test_an_optimizer_of_anothers_parameters_is_refused():
    model, other = layers(3, 4), nn.Parameter(torch.zeros(7))
    optimizer = torch.optim.SGD([*model.parameters(), other], lr=0.1)
    with pytest.raises(ValueError, match=r"shape \(7,\) that is not the model's"):
        Engine(model, optimizer, AllReduce(), StackedCommunicator(1))


@pytest.mark.parametrize("is_frozen", [False, True])
def test_parameters_in_one_memory_are_refused(is_frozen):
    """In plain torch they are tied, and in buckets would not be."""
    model = layers(3, 3, 3)
    model[1].weight.data = model[0].weight.data
    model[1].requires_grad_(not is_frozen)
    with pytest.raises(ValueError, match=r"'[01].weight' and '[01].weight' lie in the same memory"):
        engine_of(model, AllReduce())
    model[1].weight = model[0].weight  # as the sentence says
    engine_of(model, AllReduce())


def test_a_buffer_in_a_parameters_memory_is_refused():
    model = layers(3, 3)
    model.register_buffer("last", model[0].weight.detach()[2])
    with pytest.raises(ValueError, match=r"'0.weight' and 'last' lie in the same memory"):
        engine_of(model, AllReduce())


def test_parts_of_one_tensor_are_not_in_one_memory():
    """Rows, columns between each other, nothing, and two buffers or frozen parameters."""
    model, whole, frozen = nn.Module(), torch.zeros(6, 4), torch.zeros(3)
    parts = (whole[:2], whole[2:, ::2], whole[2:, 1::2], whole[3:3], whole[3:3])
    model.parts = nn.ParameterList(parts)
    model.one, model.other = (nn.Parameter(frozen, requires_grad=False) for _ in range(2))
    model.register_buffer("buffer", frozen)
    engine_of(model, AllReduce())


def test_parameters_in_memory_that_processes_share_are_refused():
    model = layers(3, 3)
    with pytest.raises(ValueError, match=r"'0.weight' lies in memory that other processes share"):
        engine_of(model.share_memory(), AllReduce())
    engine_of(copy.deepcopy(model), AllReduce())  # as the sentence says
    model.requires_grad_(False).append(nn.Linear(3, 3))  # frozen, it stays where it is
    engine_of(model, AllReduce())
    assert model[0].weight.is_shared()


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.double().float(),
        lambda m: m.load_state_dict({name: x.clone() for name, x in m.state_dict().items()}),
    ],
)
def test_tensors_that_were_swapped_and_have_lost_their_hooks_are_told_of(change):
    model = layers(3, 4)
    engine, optimizer = engine_of(model, AllReduce())
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        change(model)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    model(torch.ones(2, 3)).sum().backward()
    with pytest.raises(ValueError, match=r"^'0.weight' .* has lost its hooks, since torch.utils"):
        optimizer.step()
    engine.close()


def test_a_parameter_whose_gradient_has_another_type_is_refused():
    model = layers(3, 4).bfloat16()
    model[0].weight.grad_dtype = torch.float32
    with pytest.raises(
        ValueError, match=r"^'0.weight' is torch.bfloat16 .* leave grad_dtype as it"
    ):
        engine_of(model, AllReduce())
    model[0].weight.grad_dtype = torch.bfloat16
    engine_of(model, AllReduce())


def test_a_model_is_not_distributed_in_inference_mode():
    with torch.inference_mode(), pytest.raises(ValueError, match=r"call distribute\(\) outside of"):
        engine_of(layers(3, 4), AllReduce())


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_a_lazy_model_is_refused_before_its_first_forward():
    model = nn.LazyLinear(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="run one forward pass before"):
        Engine(model, optimizer, AllReduce(), StackedCommunicator(1))
    model(torch.ones(1, 2))
    Engine(model, optimizer, AllReduce(), StackedCommunicator(1))


@pytest.mark.parametrize("find", [False, True])
def test_weight_decay_spares_an_unused_parameter_if_it_is_to_be_found(find):
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "idle": nn.Linear(3, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5)
    communicator = StackedCommunicator(1)
    Engine(model, optimizer, AllReduce(), communicator, find_unused_parameters=find)
    before = model["idle"].weight.clone()
    for _ in range(2):
        optimizer.zero_grad()
        model["used"](torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert (model["idle"].weight.grad is None) == find
    assert torch.equal(model["idle"].weight, before) == find


def test_a_parameter_that_another_worker_has_used_is_used():
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "idle": nn.Linear(3, 2)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    Engine(model, optimizer, Algorithm(), WithAnother(), find_unused_parameters=True)
    model["used"](torch.ones(1, 3)).sum().backward()
    assert model["idle"].weight.grad.eq(0).all()


def test_a_parameter_used_in_one_micro_batch_is_used():
    model = nn.ModuleDict({"a": nn.Linear(3, 2, bias=False), "b": nn.Linear(3, 2, bias=False)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(
        model, optimizer, AllReduce(), StackedCommunicator(1), find_unused_parameters=True
    )
    with engine.no_sync():
        model["a"](torch.ones(1, 3)).sum().backward()
    model["b"](torch.ones(1, 3)).sum().backward()
    assert model["a"].weight.grad.eq(1).all()
    assert model["b"].weight.grad.eq(1).all()


def test_reentrant_checkpointing_is_refused():
    model = layers(3, 4, 5)
    engine_of(model, AllReduce())
    x = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(ValueError, match="use_reentrant=False"):
        checkpoint(model, x, use_reentrant=True).sum().backward()


class Again(torch.autograd.Function):
    """Checkpoints as libraries of their own do: backward computes the layer anew."""

    @staticmethod
    def forward(ctx, layer, x):
        ctx.layer = layer
        ctx.save_for_backward(x)
        with torch.no_grad():
            return layer(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.layer(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad


@pytest.mark.parametrize("algorithm", [AllReduce(), Decentralized(), LocalSGD(interval=2)])
@pytest.mark.parametrize("again", [(0,), (1,), (0, 1)])
def test_checkpointing_of_a_scripts_own_is_refused_where_it_is_reentrant(algorithm, again):
    model = layers(3, 4, 5)
    engine, _ = engine_of(model, algorithm, bucket_bytes=1)
    x = torch.ones(2, 3, requires_grad=True)
    with engine.no_sync():
        Again.apply(model, x).sum().backward()
    expected = [torch.autograd.grad(model(x).sum(), p)[0] for p in model.parameters()]
    assert all(map(torch.equal, [p.grad for p in model.parameters()], expected))
    y = x
    for number, layer in enumerate(model):
        y = Again.apply(layer, y) if number in again else layer(y)
    with pytest.raises(ValueError, match=r"calls backward\(\) in the backward of an autograd func"):
        y.sum().backward()


def test_compiled_autograd_is_refused():
    model = layers(3, 4)
    engine, optimizer = engine_of(model, AllReduce())
    loss = model(torch.ones(2, 3)).sum()
    with (
        compiled_autograd._enable(torch.compile(backend="eager")),
        pytest.raises(ValueError, match=r"^compiled autograd is not supported: switch"),
    ):
        loss.backward()
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    engine.close()


def test_sparse_gradients_are_refused():
    model = nn.Embedding(5, 3, sparse=True)
    engine_of(model, AllReduce())
    with pytest.raises(ValueError, match="without sparse=True"):
        model(torch.tensor([1, 2])).sum().backward()


def test_after_a_backward_that_broke_off_the_next_one_is_refused():
    """It would end without anybody waiting for the buckets."""

    def break_off(*_):
        raise ArithmeticError("out of memory")

    model = layers(3, 4, 5)
    engine_of(model, AllReduce(), bucket_bytes=1)
    hook = model[0].register_full_backward_pre_hook(break_off)
    with pytest.raises(ArithmeticError):
        model(torch.ones(2, 3)).sum().backward()
    hook.remove()
    with pytest.raises(ValueError, match="was broken off by an error"):
        model(torch.ones(2, 3)).sum().backward()


def test_checkpointing_that_is_not_reentrant_changes_nothing():
    plain, model = layers(3, 4, 5), layers(3, 4, 5)
    algorithm = Recording()
    engine_of(model, algorithm, bucket_bytes=1)
    x = torch.ones(2, 3)
    plain(x).square().sum().backward()
    y = checkpoint(model[0], x, use_reentrant=False)
    checkpoint(model[1], y, use_reentrant=False).square().sum().backward()
    for expected, parameter in zip(plain.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)
    assert algorithm.moments == ["forward", "bucket 0", "bucket 1", "backward end"]


def test_an_empty_backward_has_the_moments_of_one_that_is_not():
    model, algorithm = layers(3, 4, 5), Recording()
    engine, _ = engine_of(model, algorithm, bucket_bytes=1)
    model(torch.ones(2, 3)).sum().backward()
    moments = list(algorithm.moments)
    model.zero_grad()
    algorithm.moments.clear()
    engine.empty_backward()
    assert algorithm.moments == moments
    assert all(p.grad.eq(0).all() for p in model.parameters())


def test_an_empty_backward_keeps_what_has_accumulated():
    model = layers(3, 4)
    engine, _ = engine_of(model, AllReduce())
    with engine.no_sync():
        model(torch.ones(1, 3)).sum().backward()
    engine.empty_backward()
    assert model[0].weight.grad.eq(1).all()


@pytest.mark.parametrize("has_examples", [True, False])
def test_passes_within_no_sync_alone_are_no_step_of_workers_that_average(has_examples):
    """Also those of a worker without examples."""
    model = layers(3, 4)
    engine, optimizer = engine_of(model, AllReduce())
    for is_last in (True, False):
        model(torch.ones(1, 3)).sum().backward()
        with engine.no_sync():
            if has_examples:
                model(torch.ones(1, 3)).sum().backward()
            else:
                engine.empty_backward()
        if is_last:
            engine.empty_backward()
            optimizer.step()
    with pytest.raises(ValueError, match=r"all accumulated within no_sync\(\)"):
        optimizer.step()


def test_in_a_consensus_moving_averages_are_means_and_counts_are_worker_0s():
    model = StackedModel(nn.BatchNorm1d(3, dtype=torch.float64), 4)
    norm = model.module
    engine, _ = engine_of(model, AllReduce(), world_size=4)
    norm.running_mean += torch.arange(4, dtype=torch.float64)[:, None] + 1e-12
    norm.num_batches_tracked += torch.tensor([5, 7, 9, 11])
    with engine.consensus():
        mean = torch.full((4, 3), 1.5 + 1e-12, dtype=torch.float64)
        torch.testing.assert_close(norm.running_mean, mean, rtol=0, atol=1e-15)
        assert norm.num_batches_tracked.eq(5).all()


def test_a_model_without_buffers_has_a_consensus():
    model = StackedModel(layers(2, 3), 4)
    engine, _ = engine_of(model, LocalSGD(), world_size=4)
    weight = model.module[0].weight
    with torch.no_grad():
        weight += torch.arange(4.0)[:, None, None]
    mean = weight.detach().mean(0)
    with engine.consensus():
        torch.testing.assert_close(weight.detach(), mean.expand_as(weight))


@pytest.mark.parametrize("algorithm", [LocalSGD(interval=1, outer=SlowMo()), QAdam(warmup_steps=1)])
def test_a_scheduler_sets_the_rate_of_what_algorithms_do_in_the_optimizers_place(algorithm):
    """A rate that has become nearly 0 leaves the weights where they are."""
    model = layers(3, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    Engine(model, optimizer, algorithm, StackedCommunicator(1))
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3], gamma=1e-9)
    moved = []
    for _ in range(5):
        before = model[0].weight.detach().clone()
        optimizer.zero_grad()
        model(torch.ones(1, 3)).square().sum().backward()
        optimizer.step()
        schedule.step()
        moved.append((model[0].weight.detach() - before).abs().max().item())
    assert min(moved[:3]) > 1e-2
    assert max(moved[3:]) < 1e-6


@pytest.mark.parametrize("algorithm", [LocalSGD(interval=1, outer=SlowMo()), QAdam(warmup_steps=1)])
def test_a_group_that_is_split_later_is_as_one_that_was_split_before(algorithm):
    def train(*, early):
        model = layers(3, 4)
        options = {"lr": 0.1, "betas": (0.9, 0.99)}
        optimizer = torch.optim.Adam(model.parameters(), **options)

        def split():
            [group] = optimizer.param_groups
            *others, last = group["params"]
            group["params"] = others
            optimizer.add_param_group({"params": [last], **options})

        if early:
            split()
        Engine(model, optimizer, algorithm, StackedCommunicator(1))
        for step in range(6):
            if step == 3:
                if not early:
                    split()
                optimizer.param_groups[1]["lr"] = 0.01
            optimizer.zero_grad()
            model(torch.ones(1, 3)).square().sum().backward()
            optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    for late, early in zip(train(early=False), train(early=True), strict=True):
        assert torch.equal(late, early)


def test_qadam_leaves_a_parameter_alone_that_nothing_has_used():
    model = nn.ModuleDict({"used": nn.Linear(3, 2), "idle": nn.Linear(3, 2)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    algorithm = QAdam(warmup_steps=1)
    engine = Engine(
        model, optimizer, algorithm, StackedCommunicator(1), find_unused_parameters=True
    )
    used, idle = model["used"].weight.clone(), model["idle"].weight.clone()
    with pytest.warns(UserWarning, match="2 parameters have had no gradient but zero"):
        for _ in range(3):
            optimizer.zero_grad()
            model["used"](torch.ones(1, 3)).sum().backward()
            optimizer.step()
    engine.close()
    assert not torch.equal(model["used"].weight, used)
    assert torch.equal(model["idle"].weight, idle)


def test_released_from_qadam_adam_goes_on_with_its_moments():
    model = layers(3, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    bagua_algos.distribute(model, optimizer, QAdam(warmup_steps=1), StackedCommunicator(1))
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert model[0].weight not in optimizer.state
    bagua_algos.release(model)
    assert optimizer.state[model[0].weight]["step"] == 3
    assert optimizer.state[model[0].weight]["exp_avg"].gt(0).all()


def test_a_script_without_examples_takes_part_by_one_call():
    model = layers(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bagua_algos.distribute(model, optimizer, AllReduce(), StackedCommunicator(1))
    bagua_algos.empty_backward(model)
    bagua_algos.release(model)
    assert model[0].weight.grad.eq(0).all()


def test_within_no_sync_a_scripts_gradients_only_accumulate():
    model, algorithm = layers(3, 4), Recording()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    bagua_algos.distribute(model, optimizer, algorithm, StackedCommunicator(1))
    with bagua_algos.no_sync(model):
        model(torch.ones(1, 3)).sum().backward()
    assert "bucket 0" not in algorithm.moments
    model(torch.ones(1, 3)).sum().backward()
    bagua_algos.release(model)
    assert algorithm.moments == ["forward", "forward", "bucket 0", "backward end"]
    assert model[0].weight.grad.eq(2).all()


@pytest.mark.parametrize(
    "call",
    [
        bagua_algos.no_sync,
        bagua_algos.empty_backward,
        bagua_algos.tuning,
        bagua_algos.state_dict,
        lambda model: bagua_algos.load_state_dict(model, {}),
    ],
)
def test_a_model_that_is_not_distributed_is_refused(call):
    with pytest.raises(ValueError, match=r"^this model is not distributed: call bagua_algos\.dist"):
        call(layers(3, 4))
