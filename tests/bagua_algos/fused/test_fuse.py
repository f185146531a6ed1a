"""A fused optimizer is the optimizer, bit for bit, whatever a script does with it."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.testing._internal.two_tensor import TwoTensor

from bagua_algos import fuse_optimizer, unfuse_optimizer
from bagua_algos.fused import fuse
from tests.bagua_algos.fused.settings import (
    SETTINGS,
    SHAPES,
    assert_same,
    make,
    make_parameters,
    set_gradients,
)

NEEDS_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def both(
    setting: str, device: str = "cpu"
) -> tuple[Optimizer, list[nn.Parameter], Optimizer, list[nn.Parameter]]:
    """A fused optimizer and its parameters, and a plain one and its."""
    ours, theirs = make_parameters(device), make_parameters(device)
    return fuse_optimizer(make(setting, ours)), ours, make(setting, theirs), theirs


def num_strips(optimizer: Optimizer) -> int:
    return sum(len(group.strips) for group in vars(optimizer)[fuse._ATTRIBUTE]._known.values())


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_a_hundred_steps(setting, device):
    fused, ours, plain, theirs = both(setting, device)
    for step in range(100):
        for parameters, optimizer in ((ours, fused), (theirs, plain)):
            set_gradients(parameters, step)
            optimizer.step()
            optimizer.zero_grad()
    assert_same(fused, plain)
    assert num_strips(fused) == 2, "the one without dimensions is in none, and divides none"


@pytest.mark.parametrize("setting", SETTINGS)
def test_plain_steps_between_loaded_states_and_parameters_that_are_not_always_used(setting):
    fused, ours, plain, theirs = both(setting)
    cls = SETTINGS[setting][0]
    for step in range(30):
        for parameters in (ours, theirs):
            set_gradients(parameters, step, lambda i, s=step: not (i in (2, 8) and s % 3 == 1))
        plain.step()
        cls.step(fused) if step % 5 == 4 else fused.step()
        assert_same(fused, plain)
        if step == 11:
            fused.load_state_dict(copy.deepcopy(plain.state_dict()))
        if step == 17:
            plain.load_state_dict(copy.deepcopy(fused.state_dict()))


def test_frozen_parameters_and_new_groups():
    fused, ours, plain, theirs = both("adamw")
    for parameters, optimizer in ((ours, fused), (theirs, plain)):
        for step in range(9):
            parameters[1].requires_grad_(step > 3)
            parameters[9].requires_grad_(step < 3)
            if step == 6:
                torch.manual_seed(9)
                added = [nn.Parameter(torch.randn(4)) for _ in range(3)]
                optimizer.add_param_group({"params": added, "lr": 0.5})
                parameters += added
            set_gradients(parameters, step)
            optimizer.step()
    assert_same(fused, plain)


def test_options_that_change_between_steps():
    fused, ours, plain, theirs = both("adam")
    for parameters, optimizer in ((ours, fused), (theirs, plain)):
        schedule = StepLR(optimizer, 2, 0.5)
        for step in range(6):
            optimizer.param_groups[0]["weight_decay"] = 0.1 * step
            set_gradients(parameters, step)
            optimizer.step()
            schedule.step()
    assert_same(fused, plain)


@pytest.mark.parametrize("fuse_first", [True, False])
def test_schedules_made_before_and_after(fuse_first):
    """With warnings as errors: a scheduler looks whether its optimizer steps."""
    parameters, others = make_parameters(), make_parameters()
    optimizer, plain = make("sgd momentum", parameters), make("sgd momentum", others)
    if fuse_first:
        fuse_optimizer(optimizer)
    schedules = [StepLR(optimizer, 2, 0.5), StepLR(plain, 2, 0.5)]
    fuse_optimizer(optimizer)
    for step in range(8):
        for own, each, schedule in zip(
            (parameters, others), (optimizer, plain), schedules, strict=True
        ):
            set_gradients(own, step)
            each.step()
            schedule.step()
        if step == 4:
            assert num_strips(optimizer) == 2
            unfuse_optimizer(optimizer)
    assert_same(optimizer, plain)


@pytest.mark.parametrize("overflows", [False, True])
def test_a_grad_scaler(overflows):
    fused, ours, plain, theirs = both("adamw")
    for parameters, optimizer in ((ours, fused), (theirs, plain)):
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
        for step in range(6):
            set_gradients(parameters, step)
            for parameter in parameters:
                parameter.grad *= scaler.get_scale()
            if overflows and step == 2:
                parameters[4].grad[0] = torch.inf
            scaler.scale(torch.ones(()))  # as of a loss
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            scaler.step(optimizer)
            scaler.update()
    assert_same(fused, plain)


def test_a_closure_is_called_once_with_gradients():
    results = []
    for fuses in (True, False):
        parameters = make_parameters()
        optimizer = make("sgd momentum", parameters)
        if fuses:
            fuse_optimizer(optimizer)

        def closure(parameters=parameters, optimizer=optimizer):
            optimizer.zero_grad()
            loss = sum(p.square().sum() for p in parameters)
            loss.backward()
            return loss

        losses = [optimizer.step(closure).item() for _ in range(4)]
        losses.append(optimizer.step(closure=closure).item())
        results.append((losses, optimizer))
    assert results[0][0] == results[1][0] == sorted(results[1][0], reverse=True)
    assert_same(results[0][1], results[1][1])


def test_hooks_see_the_parameters_and_not_flat_tensors():
    fused, ours, _, _ = both("adam")
    seen = []

    def look(optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        seen.append([p for group in optimizer.param_groups for p in group["params"]])
        assert set(optimizer.state) <= set(ours)

    fused.register_step_pre_hook(look)
    fused.register_step_post_hook(look)
    set_gradients(ours, 0)
    fused.step()
    assert len(seen) == 2 and all(a is b for own in seen for a, b in zip(own, ours, strict=True))


def test_a_step_that_fails_leaves_the_optimizer_as_it_was():
    class Failing(torch.optim.SGD):
        fails = False

        def step(self, closure=None):
            if self.fails:
                raise KeyboardInterrupt
            return super().step(closure)

    ours = make_parameters()
    optimizer = fuse_optimizer(Failing(ours, lr=0.1, momentum=0.9))
    set_gradients(ours, 0)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    Failing.fails = True
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert all(a is b for a, b in zip(optimizer.param_groups[0]["params"], ours, strict=True))
    assert str(optimizer.state_dict()) == str(before)


def test_a_backward_through_a_graph_of_before_the_step_is_refused():
    weights = [nn.Parameter(torch.ones(3)) for _ in range(3)]
    optimizer = fuse_optimizer(torch.optim.SGD(weights, lr=0.1))
    loss = (weights[0] * weights[1] * weights[2]).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_copies_and_files_are_plain():
    fused, ours, _, _ = both("adamw")
    set_gradients(ours, 0)
    fused.step()
    for other in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))):
        assert type(other) is torch.optim.AdamW and "step" not in vars(other)
        other.step()
    file = io.BytesIO()
    torch.save(fused.state_dict(), file)
    file.seek(0)
    plain = make("adamw", make_parameters())
    plain.load_state_dict(torch.load(file))
    assert str(plain.state_dict()) == str(fused.state_dict())


def test_unfused_it_is_as_before_and_owns_its_memory():
    fused, ours, plain, theirs = both("adamw")
    for step in range(4):
        for parameters, optimizer in ((ours, fused), (theirs, plain)):
            set_gradients(parameters, step)
            optimizer.step()
        if step == 1:
            assert unfuse_optimizer(fused) is fused
            assert "step" not in vars(fused) and not fused._optimizer_state_dict_post_hooks
    assert_same(fused, plain)
    states = fused.state.values()
    addresses = {state["exp_avg"].untyped_storage().data_ptr() for state in states}
    assert len(addresses) == len(SHAPES)
    assert unfuse_optimizer(fused) is fused


def test_sparse_shared_and_strided_parameters_are_left_alone():
    torch.manual_seed(0)
    embedding = nn.Embedding(5, 4, sparse=True)
    strided = nn.Parameter(torch.randn(4, 6).T)
    shared = nn.Parameter(torch.randn(8).share_memory_())
    together = [nn.Parameter(torch.randn(7)) for _ in range(2)]
    parameters = [*together, strided, embedding.weight, shared]
    addresses = [p.data_ptr() for p in (strided, shared)]
    others = copy.deepcopy(parameters)
    fused, plain = fuse_optimizer(torch.optim.SGD(parameters, lr=0.1)), torch.optim.SGD(others, 0.1)
    for _ in range(2):
        for own, optimizer in ((parameters, fused), (others, plain)):
            optimizer.zero_grad()
            rows = nn.functional.embedding(torch.tensor([1, 3]), own[3], sparse=True)
            (rows.sum() + sum(p.square().sum() for i, p in enumerate(own) if i != 3)).backward()
            optimizer.step()
    assert_same(fused, plain)
    assert [p.data_ptr() for p in (strided, shared)] == addresses
    assert num_strips(fused) == 1 and shared.is_shared()


def test_parameters_around_other_tensors_are_stepped_as_ever():
    def trained(wrap):
        parameters = [nn.Parameter(torch.ones(size)) for size in (4, 5)]
        parameters.insert(1, nn.Parameter(TwoTensor(torch.ones(3), torch.ones(3))))
        optimizer = wrap(torch.optim.AdamW(parameters, lr=0.1))
        for _ in range(3):
            for parameter in parameters:
                parameter.grad = parameter.detach().clone()
            optimizer.step()
        return optimizer, parameters

    (fused, ours), (_, theirs) = trained(fuse_optimizer), trained(lambda optimizer: optimizer)
    assert num_strips(fused) == 1
    for own, other in zip(ours, theirs, strict=True):
        assert type(own.data) is type(other.data) and own.sum().item() == other.sum().item()


def tied_over_groups():
    encoder, decoder = (nn.Parameter(torch.randn(3, 4)) for _ in range(2))
    decoder.data = encoder.data
    return [[encoder], [decoder]], decoder


def overlapping():
    table = nn.Parameter(torch.randn(12))
    return [[table, nn.Parameter(table.data[5:])]], table.detach()


def tied_to_a_frozen_one():
    weight = nn.Parameter(torch.randn(6))
    return [[weight]], nn.Parameter(weight.data, requires_grad=False)


@pytest.mark.parametrize("make_tied", [tied_over_groups, overlapping, tied_to_a_frozen_one])
def test_parameters_in_memory_of_others_stay_there(make_tied):
    def trained(wrap):
        torch.manual_seed(0)
        groups, other = make_tied()
        groups[0] += [nn.Parameter(torch.randn(5)) for _ in range(2)]
        decays = [{"params": own, "weight_decay": 0.1 * i} for i, own in enumerate(groups)]
        optimizer = wrap(torch.optim.AdamW(decays, lr=0.01))
        parameters = [p for own in groups for p in own]
        for step in range(3):
            set_gradients(parameters, step)
            optimizer.step()
        return optimizer, other

    (fused, ours), (plain, theirs) = trained(fuse_optimizer), trained(lambda optimizer: optimizer)
    assert_same(fused, plain)
    assert ours.equal(theirs)
    assert num_strips(fused) == 1, "those that are nobody else's"


def test_a_step_that_calls_another_runs_hooks_once_and_on_parameters():
    class Twice(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    ours = make_parameters()
    fused, seen = fuse_optimizer(Twice(ours, lr=0.1)), []
    fused.register_step_pre_hook(lambda own, *_: seen.append(own.param_groups[0]["params"]))
    for step in range(2):
        set_gradients(ours, step)
        fused.step()
    assert len(seen) == 2 and all(own is ours[0] for own, *_ in seen)


def test_a_closure_on_weights_that_the_step_has_changed_is_refused():
    class Ahead(torch.optim.SGD):
        def step(self, closure=None):
            loss = super().step()
            return closure() if closure is not None else loss

    ours = make_parameters()
    optimizer = fuse_optimizer(Ahead(ours, lr=0.1))
    set_gradients(ours, 0)
    with pytest.raises(ValueError, match=r"weights that it has changed .* unfuse_optimizer\(\)"):
        optimizer.step(lambda: 1.0)


def test_parameters_and_gradients_that_change_their_kind():
    """Another order of the same memory; a gradient that is sparse at times."""
    results = []
    for fuses in (True, False):
        torch.manual_seed(0)
        ours = [nn.Parameter(torch.randn(4, 4)) for _ in range(4)]
        optimizer = torch.optim.SGD(ours, lr=0.1)
        if fuses:
            fuse_optimizer(optimizer)
        for step in range(6):
            set_gradients(ours, step)
            if step == 2:
                ours[1].data = ours[1].data.T
            if step == 4:
                ours[2].grad = ours[2].grad.to_sparse()
            optimizer.step()
        results.append(optimizer)
    assert_same(*results)


def test_another_parameter_takes_the_place_of_one_in_the_same_memory():
    results = []
    for fuses in (True, False):
        ours = make_parameters()
        optimizer = torch.optim.SGD(ours, lr=0.1)
        if fuses:
            fuse_optimizer(optimizer)
        for step in range(3):
            if step == 1:
                ours[1] = nn.Parameter(ours[1].data)
                optimizer.param_groups[0]["params"][1] = ours[1]
            set_gradients(ours, step)
            optimizer.step()
        results.append(optimizer)
    assert_same(*results)
    assert num_strips(results[0]) == 1


def test_parameters_with_attributes_or_the_same_memory_are_left_alone():
    ours = make_parameters()
    ours[1].rate = 3.0
    ours.append(nn.Parameter(ours[0].data))
    optimizer = fuse_optimizer(torch.optim.SGD(ours, lr=0.1))
    assert ours[0].data_ptr() == ours[-1].data_ptr()
    set_gradients(ours, 0)
    optimizer.step()
    strips = [s for g in vars(optimizer)[fuse._ATTRIBUTE]._known.values() for s in g.strips]
    together = {id(p) for strip in strips for p in strip._parameters}
    assert together.isdisjoint({id(ours[0]), id(ours[1]), id(ours[-1])})
    assert len(together) == len(ours) - 4, "the one without dimensions, too"


def test_a_compiled_step_is_the_same():
    fused, ours, plain, theirs = both("adamw")
    step = torch.compile(fused.step, backend="eager")
    for number in range(3):
        for parameters, take in ((ours, step), (theirs, plain.step)):
            set_gradients(parameters, number)
            take()
    assert_same(fused, plain)


class Counting(Optimizer):
    """Elementwise, of one's own, with a count in Python and a state in float64."""

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["steps"] = 0
                    state["sum"] = torch.zeros_like(p, dtype=torch.float64)
                state["steps"] += 1
                state["sum"] = state["sum"] + p.grad.square()  # a new tensor each time
                step = p.grad / (state["sum"].sqrt() + state["steps"])
                p.data.add_(step.float(), alpha=-group["lr"])


def test_an_elementwise_optimizer_of_ones_own():
    ours, theirs = make_parameters(), make_parameters()
    fused, plain = fuse_optimizer(Counting(ours)), Counting(theirs)
    for step in range(12):
        for parameters, optimizer in ((ours, fused), (theirs, plain)):
            set_gradients(parameters, step, lambda i, s=step: i != 4 or s % 4 > 0)
            optimizer.step()
        assert_same(fused, plain)
    assert num_strips(fused) >= 1


class Rebinding(Optimizer):
    """Gives parameters other memory at each step, and keeps what they were before, with a count."""

    doubles = False

    def __init__(self, parameters: Any, lr: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure=None):
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                before = self.state[p].get("before", p.data)
                self.state[p]["before"] = p.data
                self.state[p]["steps"] = self.state[p].get("steps", 0) + 1
                p.data = p.data + 0.9 * (p.data - before) - group["lr"] * p.grad
                if self.doubles:
                    p.data = p.data.double()
        return loss if closure is None else closure()


def test_an_optimizer_that_gives_parameters_other_memory():
    ours, theirs = make_parameters(), make_parameters()
    fused, plain = fuse_optimizer(Rebinding(ours)), Rebinding(theirs)
    addresses = [p.data_ptr() for p in ours if p.dim()]
    for step in range(6):
        for parameters, optimizer in ((ours, fused), (theirs, plain)):
            set_gradients(parameters, step)
            optimizer.step()
        assert_same(fused, plain)
    assert not ours[0].equal(make_parameters()[0])
    assert num_strips(fused) == 1
    assert [p.data_ptr() for p in ours if p.dim()] == addresses
    with pytest.raises(ValueError, match=r"weights that it has changed .* unfuse_optimizer\(\)"):
        fused.step(lambda: 1.0)


def test_a_step_that_gives_parameters_another_type_is_refused():
    ours = [p for p in make_parameters() if p.dim()]
    optimizer = fuse_optimizer(Rebinding(ours))
    set_gradients(ours, 0)
    optimizer.step()
    before = [p.detach().clone() for p in ours]
    optimizer.doubles = True
    with pytest.raises(ValueError, match=r"made torch\.float64 .* of weights that are torch\.flo"):
        optimizer.step()
    assert all(map(torch.equal, before, ours))
    optimizer.doubles = False
    set_gradients(ours, 1)
    optimizer.step()
    assert not any(map(torch.equal, before, ours))


@pytest.mark.parametrize("others", [[], [torch.float32], [torch.float64, torch.float32]])
def test_low_precision_whose_rounding_depends_on_the_place_is_refused(others):
    """Wherever it stands among parameters of other types."""
    dtypes = [*others, torch.bfloat16, torch.bfloat16, *others]
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(5, dtype=d)) for d in dtypes], 0.1, 0.9)
    with pytest.raises(ValueError, match=r"rounds some elements of torch\.bfloat16 by their place"):
        fuse_optimizer(optimizer)
    assert not fuse.fuses_in(optimizer)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_refused_where_a_trial_shows_nothing(dtype):
    """Adagrad rounds about one element of 20,000 by its place, at some steps."""
    optimizer = torch.optim.Adagrad([nn.Parameter(torch.zeros(5, dtype=dtype))], lr=0.01)
    with pytest.raises(ValueError, match=r"by their place"):
        fuse_optimizer(optimizer)


def test_a_loaded_state_with_fused_true_is_stepped_as_usual():
    """By torch's kernels, whose rounding follows from the place."""
    fused, ours, plain, theirs = both("adamw")
    saved = torch.optim.AdamW(plain.param_groups, fused=True).state_dict()
    for step in range(20):
        for parameters, optimizer in ((ours, fused), (theirs, plain)):
            if step == 2:
                kernels = {"fused": True, "foreach": None}
                groups = [group | kernels for group in saved["param_groups"]]
                state = optimizer.state_dict()["state"]
                optimizer.load_state_dict({"state": state, "param_groups": groups})
            set_gradients(parameters, step)
            optimizer.step()
        assert num_strips(fused) == (2 if step < 2 else 0)
    assert_same(fused, plain)


def test_twice_is_once():
    fused, _, _, _ = both("adam")
    before = vars(fused)["step"]
    assert fuse_optimizer(fused) is fused and vars(fused)["step"] is before


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["step", "step", "plain step", "load", "unfuse and fuse"]),
        st.sets(st.integers(0, len(SHAPES) - 1), max_size=4),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25)
@given(moves=MOVES, setting=st.sampled_from(["sgd momentum", "adam amsgrad", "nadam", "rprop"]))
def test_whatever_a_script_does_in_whatever_order(moves, setting):
    """Each move leaves some parameters without a gradient."""
    fused, ours, plain, theirs = both(setting)
    for step, (move, unused) in enumerate(moves):
        for parameters in (ours, theirs):
            set_gradients(parameters, step, lambda i, unused=unused: i not in unused)
        if move == "load":
            fused.load_state_dict(copy.deepcopy(fused.state_dict()))
        elif move == "unfuse and fuse":
            fuse_optimizer(unfuse_optimizer(fused))
        SETTINGS[setting][0].step(fused) if move == "plain step" else fused.step()
        plain.step()
        assert_same(fused, plain)
