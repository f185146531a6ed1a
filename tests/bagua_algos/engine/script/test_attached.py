"""When an engine's moments come, and on which gradients a step may be taken: in one process."""

import copy

import pytest
import torch
from torch import nn

from bagua_algos import SGP, AllReduce, ChocoSGD, Decentralized, LocalSGD
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from tests.bagua_algos.engine.test_engine import Recording, engine_of, layers


def backward(model: nn.Module) -> None:
    model(torch.ones(2, 3)).sum().backward()


def give_own_gradients(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)


PASS = ["bucket 0", "backward end"]
OF_PARAMETERS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def test_each_backward_pass_begins_the_step_anew():
    """The forward after a pass may be another micro-batch's, or the next step's: nobody knows."""
    model, algorithm = layers(3, 4), Recording()
    engine, optimizer = engine_of(model, algorithm)
    for step in range(2):
        for _ in range(3):
            backward(model)
        optimizer.step()
        assert algorithm.moments == [*["forward", *PASS] * 3, f"step {step} end"]
        algorithm.moments.clear()
    engine.close()


def test_a_forward_after_a_backward_pass_waits_for_its_first_gradient():
    model, algorithm = layers(3, 4), Recording()
    engine, optimizer = engine_of(model, algorithm)
    backward(model)
    loss = model(torch.ones(2, 3)).sum()
    assert algorithm.moments == ["forward", *PASS]
    loss.backward()
    assert algorithm.moments == ["forward", *PASS] * 2
    optimizer.step()
    loss = model(torch.ones(2, 3)).sum()
    engine.dispatcher.wait_exposed()
    assert algorithm.moments[-2:] == ["step 0 end", "forward"]
    loss.backward()
    assert algorithm.moments[-3:] == ["forward", *PASS]
    engine.close()


def test_a_step_may_be_taken_twice_on_gradients_that_workers_have_averaged():
    model = layers(3, 4)
    engine, optimizer = engine_of(model, AllReduce())
    before = model[0].weight.detach().clone()
    backward(model)
    for _ in range(3):
        optimizer.step()
    torch.testing.assert_close(model[0].weight, before - 3 * 0.1 * 2)
    engine.close()


@pytest.mark.parametrize("algorithm", [AllReduce(), Decentralized()])
@pytest.mark.parametrize("first", [0, 2])
def test_a_step_on_gradients_of_ones_own_is_refused_where_workers_meet_in_backward(
    algorithm, first
):
    model = layers(3, 4)
    engine, optimizer = engine_of(model, algorithm)
    for _ in range(first):
        backward(model)
        optimizer.step()
    give_own_gradients(model)
    with pytest.raises(ValueError, match=r"^'0.weight' .* gradient that no backward pass of the"):
        optimizer.step()
    optimizer.zero_grad()
    optimizer.step()
    engine.close()


def test_gradients_of_zero_are_nobodys():
    model = layers(3, 4)
    engine, optimizer = engine_of(model, AllReduce())
    before = model[0].weight.detach().clone()
    model[0].weight.grad = torch.zeros_like(model[0].weight)
    optimizer.step()
    assert torch.equal(model[0].weight, before)
    engine.close()


@pytest.mark.parametrize("algorithm", [SGP(overlap=True), LocalSGD(interval=2)])
def test_it_is_taken_where_they_do_not(algorithm):
    model = layers(3, 4)
    engine, optimizer = engine_of(model, algorithm)
    before = model[0].weight.detach().clone()
    give_own_gradients(model)
    optimizer.step()
    torch.testing.assert_close(model[0].weight, before - 0.1)
    engine.close()


def test_a_state_that_was_taken_is_nobodys_but_its_own():
    model = layers(3, 4)
    engine, optimizer = engine_of(model, ChocoSGD())
    state = engine.state_dict()
    kept = copy.deepcopy(state)
    engine.load_state_dict(state)
    backward(model)
    optimizer.step()
    saved, before = (repr(one["state"]) for one in (state, kept))
    assert saved == before and repr(engine.state_dict()["state"]) != before
    assert [one["step"] for one in (state, engine.state_dict())] == [0, 1]
    engine.close()


def test_the_end_leaves_hooks_neither_on_the_model_nor_on_the_optimizer():
    model = layers(3, 4, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def num_hooks() -> list[int]:
        parts = [hooks for m in model.modules() for hooks in vars(m).items()]
        held = [*parts, *vars(optimizer).items()]
        held += [(name, getattr(p, name)) for p in model.parameters() for name in OF_PARAMETERS]
        return [len(hooks or ()) for name, hooks in held if name.endswith("hooks")]

    before = num_hooks()
    engine = Engine(model, optimizer, ChocoSGD(), StackedCommunicator(1))
    assert num_hooks() != before
    engine.close()
    assert sum(num_hooks()) == sum(before)


class Around(torch.optim.SGD):
    """Steps another optimizer in its own step, as Lookahead does."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__([torch.zeros(1)], lr=0.1)

    def step(self, closure=None):
        return self.inner.step(closure)


def test_a_step_within_another_optimizers_is_a_step():
    model, algorithm = layers(3, 4), Recording()
    engine, optimizer = engine_of(model, algorithm)
    outer = Around(optimizer)
    for step in range(2):
        backward(model)
        outer.step()
        assert algorithm.moments == ["forward", *PASS, f"step {step} end"]
        algorithm.moments.clear()
    engine.close()
