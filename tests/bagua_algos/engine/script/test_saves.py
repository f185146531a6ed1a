"""What a script saves within the consensus, and looks at when that is over."""

import copy
import io

import pytest
import torch
from torch import nn

from bagua_algos import LocalSGD
from bagua_algos.communication.stacked import StackedCommunicator
from bagua_algos.engine.engine import Engine
from bagua_algos.engine.script.saves import snapshot
from bagua_algos.worker_axis.models import StackedModel


class Two(nn.Module):
    """Two layers, of which the second may have the first one's weight."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2)
        if tied:
            self.last.weight = self.first.weight

    def forward(self, x):
        return self.last(self.norm(self.first(x)))


@pytest.fixture(params=[False, True], ids=["apart", "tied"])
def trained(request):
    """Three workers, whose weights and buffers are their ranks; their engine and the model."""
    model = StackedModel(Two(tied=request.param), 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = Engine(model, optimizer, LocalSGD(interval=2), StackedCommunicator(3))
    part(engine, torch.arange(3.0))
    yield engine, model
    engine.close()


def part(engine, values_w):
    with torch.no_grad():
        for x in [*engine.model.parameters(), engine.model.module.norm.running_mean]:
            x.copy_(values_w.view(3, *[1] * (x.dim() - 1)).expand_as(x))


def are_means(state):
    return all(x.eq(1).all() for name, x in state.items() if "var" not in name and x.dim() > 1)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_is_saved_of_the_consensus_stays_it(trained, mode):
    engine, model = trained
    around = nn.ModuleDict({"inner": model, "other": nn.Linear(1, 1)})
    with mode(), engine.consensus():
        states = [x.state_dict() for x in (model, model.module.first, around)]
        own = around.other.weight.data_ptr() == states[2]["other.weight"].data_ptr()
    part(engine, torch.tensor([5.0, 6.0, 7.0]))
    assert own
    for state in (states[0], states[1]):
        assert are_means(state) and not any(x.is_inference() for x in state.values())
    assert are_means({n: x for n, x in states[2].items() if n.startswith("inner.")})
    assert list(states[0]) == list(model.state_dict())
    is_tied = model.module.first.weight is model.module.last.weight
    first, last = (states[0][f"module.{n}.weight"].data_ptr() for n in ("first", "last"))
    assert (first == last) == is_tied


def test_parameters_and_what_is_the_same_everywhere_are_not_copied(trained):
    engine, model = trained
    weight = model.module.first.weight
    with engine.consensus() as spread:
        assert spread > 0
        assert model.state_dict(keep_vars=True)["module.first.weight"] is weight
    place = weight.data_ptr()
    assert model.state_dict()["module.first.weight"].data_ptr() == place
    part(engine, torch.ones(3))
    with engine.consensus() as spread:
        assert spread == 0
        assert model.state_dict()["module.first.weight"].data_ptr() == place


def test_hooks_of_a_script_stay_its_own(trained):
    """Those from before can be removed within and afterwards, and those from within stay."""
    engine, model = trained
    seen = []
    gone = model.register_state_dict_post_hook(lambda *_: seen.append("gone"))
    before = model.register_state_dict_post_hook(lambda *_: seen.append("before"))
    with engine.consensus():
        model.module.first.register_state_dict_post_hook(lambda *_: seen.append("within"))
        model.state_dict()
        gone.remove()
    assert seen == ["within", "gone", "before"]
    before.remove()
    model.state_dict()
    assert seen == ["within", "gone", "before", "within"]


def test_copies_and_files_that_are_made_within_are_plain():
    plain = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    engine = Engine(plain, optimizer, LocalSGD(interval=2), StackedCommunicator(1))
    with engine._looking_on(0.5):
        twin, file = copy.deepcopy(plain), io.BytesIO()
        torch.save(plain, file)
        assert plain._state_dict_hooks and plain[0]._state_dict_hooks
    assert not any(x._state_dict_hooks for x in (*plain.modules(), *twin.modules()))
    assert b"bagua_algos" not in file.getvalue()
    engine.close()


def test_a_snapshot_has_memory_of_its_own():
    weight = torch.ones(2, 2)
    state = {"a": weight, "b": weight.view(2, 2), "turned": weight.t(), "step": 3}
    copied = snapshot(state)
    weight.zero_()
    assert copied["a"] is copied["b"] and copied["a"].eq(1).all()
    assert copied["turned"].stride() == (1, 2) and copied["step"] == 3
