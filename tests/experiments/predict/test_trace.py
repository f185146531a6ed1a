import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from experiments.models.cnn import CNN
from experiments.predict.load_model import trace_model
from experiments.predict.trace import trace_step
from host.errors import UserError

PUBLISHED = {  # parameters and 10^9 multiplications of forward, an example
    "vgg16": (138_357_544, 15.47),
    "resnet50": (25_557_032, 4.09),
    "resnext101": (44_177_704, 7.97),
    "lstm": (28_949_319, None),
    "gpt2": (124_439_808, None),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_models_have_their_published_sizes(name):
    num_parameters, multiplications = PUBLISHED[name]
    trace = trace_model({"model": name} | ({"tokens": "8"} if multiplications is None else {}), 1)
    assert trace.num_parameters == num_parameters
    if multiplications is not None:
        assert trace.forward_flops == pytest.approx(2e9 * multiplications, rel=2e-3)
        assert trace.backward_flops == pytest.approx(2 * trace.forward_flops, rel=0.02)


def test_bert_large_is_as_published():
    trace = trace_model({"model": "bert_large", "tokens": "16"}, 2)
    assert (trace.num_parameters, len(trace.parameters)) == (336_226_108, 398)
    blocks = 24 * 12 * 1024**2  # the weights of its blocks, each used for every token
    decoder = 30522 * 1024 + 2 * 1024**2
    assert trace.forward_flops == pytest.approx(2 * 2 * 16 * (blocks + decoder), rel=0.01)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_flops_are_those_of_torch(device):
    """Of a model without grouped convolutions, whose backward torch counts too high."""
    with torch.device(device):
        model, images = CNN(), torch.zeros(3, 1, 28, 28)
    trace = trace_step("cnn", model, {"": images})
    with FlopCounterMode(display=False) as forward:
        loss = nn.functional.cross_entropy(
            model(images), torch.zeros(3, dtype=torch.long, device=device)
        )
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    assert trace.forward_flops == forward.get_total_flops() > 0
    assert trace.backward_flops == backward.get_total_flops()
    layers = trace.layers.values()
    assert sum(layer.forward for layer in layers) == trace.forward_flops
    assert sum(layer.backward for layer in layers) == trace.backward_flops


def test_a_grouped_convolution_costs_a_group_in_both_directions():
    with torch.device("meta"):
        one, four = (nn.Conv2d(8, 8, 1, groups=groups) for groups in (1, 4))
        images = torch.zeros(2, 8, 5, 5)
        whole, parts = (trace_step("x", model, {"": images}) for model in (one, four))
    for name in ("forward_flops", "backward_flops"):
        assert getattr(whole, name) == 4 * getattr(parts, name) > 0
    assert parts.layers["Conv2d"].forward == parts.forward_flops


class Branches(nn.Module):
    """Two layers whose order in the model is not the order of forward, and one that is unused."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(4, 3)
        self.unused = nn.Linear(4, 4)
        self.first = nn.Linear(4, 4)

    def forward(self, x):
        return self.last(self.first(x))


def test_gradients_arrive_in_the_order_of_backward():
    with torch.device("meta"):
        model, x = Branches(), torch.zeros(2, 4)
    trace = trace_step("branches", model, {"": x})
    assert trace.arrivals[2:4] == (None, None)
    arrivals = [place or 0 for place in trace.arrivals]
    last, first = arrivals[:2], arrivals[4:]
    assert max(last) < min(first) <= max(first) == len(trace.backward.kinds)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_tied_matrix_arrives_when_its_last_use_has_been_differentiated():
    trace = trace_model({"model": "lstm", "tokens": "2"}, 1)
    assert trace.parameters[0] == (28_869, 650)
    assert trace.arrivals[0] == max(place or 0 for place in trace.arrivals)
    assert (
        trace.forward.flops_of("recurrent") == 2 * 2 * 3 * 8 * 650**2
    )  # tokens, layers, 8 matrices


def test_fused_attention_keeps_the_scores_out_of_memory():
    words = {
        "model": "gpt2",
        "model.config.n_layer": "1",
        "model.config.vocab_size": "64",
        "tokens": "512",
    }
    fused, plain = (trace_model(words, 1, fused_attention=fused) for fused in (True, False))
    products = 2 * 2 * 512**2 * 768
    assert fused.forward.flops_of("attention") == plain.forward.flops_of("attention") == products
    scores = 4 * 12 * 512**2
    assert sum(plain.forward.num_bytes) - sum(fused.forward.num_bytes) > 3 * scores
    assert fused.arrivals[0] is not None


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            {"model": "cnn"},
            "model=cnn has no shapes: choose model=bert_base, .* by model._target_=",
        ),
        ({}, "model is missing"),
        ({"model._target_": "torch.nn.Nothing", "features": "3"}, "model: Error loading"),
        ({"model._target_": "torch.nn.ReLU", "features": "3"}, "no output depends on a weight"),
        ({"model._target_": "experiments.models.cnn.CNN"}, "say tokens=128, image=3x224x224 or"),
        ({"model._target_": "experiments.models.cnn.CNN", "image": "28"}, "image=28 is no example"),
        (
            {"model._target_": "builtins.dict", "tokens": "3"},
            r"model: dict is no torch\.nn\.Module",
        ),
        (
            {"model._target_": "experiments.models.cnn.CNN", "image": "1x64x64"},
            "CNN cannot be traced without numbers: ",
        ),
    ],
)
def test_what_cannot_be_traced_is_refused_in_a_sentence(words, complaint):
    with pytest.raises(UserError, match=complaint):
        trace_model(words, 1)


class ReadsNumbers(nn.Linear):
    def forward(self, input):
        return super().forward(input) * input.sum().item()


def test_a_model_that_needs_numbers_is_refused():
    with torch.device("meta"):
        model = ReadsNumbers(3, 2)
    with pytest.raises(UserError, match=r"x cannot be traced without numbers: .*meta"):
        trace_step("x", model, {"": torch.zeros(1, 3, device="meta")})
