import math

import pytest

from experiments.predict.shapes import (
    MODELS,
    Layer,
    ModelShape,
    bert_large,
    resnet50,
    vgg16,
)


@pytest.mark.parametrize(
    ("name", "num_parameters", "num_tensors"),
    [
        ("vgg16", 138_357_544, 32),  # torchvision's
        ("resnet50", 25_557_032, 161),
        ("bert_large", 336_226_108, 398),  # with the heads of pre-training, the decoder tied
    ],
)
def test_parameters_are_those_of_the_published_models(name, num_parameters, num_tensors):
    model = MODELS[name]()
    assert model.name == name
    assert model.num_parameters == num_parameters
    assert len(model.parameters) == num_tensors


def test_flops_are_those_of_the_published_models():
    assert vgg16().forward_flops == pytest.approx(2 * 15.47e9, rel=1e-3)
    assert resnet50().forward_flops == pytest.approx(2 * 4.09e9, rel=1e-3)
    blocks = 24 * 12 * 1024**2  # the weights of BERT-large's blocks, each used for every token
    assert 2 * 128 * blocks < bert_large().forward_flops < 1.2 * 2 * 128 * blocks


def test_attention_grows_with_the_square_of_the_tokens():
    once, twice, four = (bert_large(tokens).forward_flops for tokens in (128, 256, 512))
    products = 24 * 4 * 1024  # times the square of the tokens
    # What is left of the second difference when all that is linear has gone.
    assert four - 3 * twice + 2 * once == products * (512**2 - 3 * 256**2 + 2 * 128**2)


def test_backward_is_twice_forward_but_for_the_first_layers_input():
    layers = [Layer(parameters=((n,),), forward_flops=n) for n in (10, 20, 30)]
    model = ModelShape(name="x", layers=tuple(layers))
    assert (model.forward_flops, model.backward_flops) == (60, 110)
    assert model.ready_shares() == [1, 100 / 110, 60 / 110]


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_ready_from_the_last_to_the_first(name):
    shares = MODELS[name]().ready_shares()
    assert len(shares) == len(MODELS[name]().parameters)
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(1)
    assert shares[-1] < 0.01


def test_nearly_all_of_vgg16_is_ready_when_little_of_backward_is_done():
    model = vgg16()
    early = [
        math.prod(shape)
        for shape, share in zip(model.parameters, model.ready_shares(), strict=True)
        if share < 0.01
    ]
    assert sum(early) > 0.85 * model.num_parameters
