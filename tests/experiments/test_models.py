from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from experiments.models.cnn import CNN
from experiments.models.mlp import MLP

CONF = Path(__file__).parents[2] / "conf"
MODELS = [MLP, CNN]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("num_classes", [2, 10])
def test_shapes_and_size(model: type[nn.Module], num_classes: int):
    net = model(num_classes=num_classes)
    assert net(torch.randn(3, 1, 28, 28)).shape == (3, num_classes)
    assert 300_000 < sum(p.numel() for p in net.parameters()) < 1_500_000
    assert any(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in net.modules())


@pytest.mark.parametrize("model", MODELS)
def test_the_parameter_count_in_the_docstring(model: type[nn.Module]):
    assert f"{sum(p.numel() for p in model().parameters()):,} parameters" in (model.__doc__ or "")


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("training", [True, False])
def test_stacked_workers_equal_a_loop(model: type[nn.Module], training: bool):
    torch.manual_seed(0)
    workers = [model().double().train(training) for _ in range(3)]
    x_wb = torch.randn(3, 8, 1, 28, 28, dtype=torch.float64)
    parameters, buffers = stack_module_state(workers)
    stateless = model().to("meta").train(training)

    def forward(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(stateless, (p, b), (x,))

    stacked_wbc = vmap(forward)(parameters, buffers, x_wb)
    stacked_wbc.square().sum().backward()
    for w, worker in enumerate(workers):
        alone_bc = worker(x_wb[w])
        torch.testing.assert_close(stacked_wbc[w], alone_bc)
        alone_bc.square().sum().backward()
        for name, parameter in worker.named_parameters():
            gradient = parameters[name].grad
            assert gradient is not None
            torch.testing.assert_close(gradient[w], parameter.grad)
        for name, buffer in worker.named_buffers():
            torch.testing.assert_close(buffers[name][w], buffer)
    assert (
        buffers["0.2.running_mean" if model is CNN else "1.1.running_mean"] != 0
    ).any() == training


@pytest.mark.parametrize("hidden", [(), (0,), (64, -1)])
def test_impossible_widths_of_the_mlp(hidden: tuple[int, ...]):
    with pytest.raises(ValueError, match=r"MLP needs .*hidden="):
        MLP(hidden=hidden)


@pytest.mark.parametrize(
    ("channels", "hidden"), [((), 8), ((8, 0), 8), ((8,), 0), ((8, 8, 8, 8, 8), 8)]
)
def test_impossible_widths_of_the_cnn(channels: tuple[int, ...], hidden: int):
    with pytest.raises(ValueError, match=r"CNN .*channels="):
        CNN(channels=channels, hidden=hidden)


def test_the_cnn_takes_up_to_four_channels():
    assert CNN(channels=(4, 4, 4, 4), hidden=8)(torch.randn(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("path", sorted(CONF.glob("model/*.yaml")), ids=lambda p: p.stem)
def test_every_model_yaml(path: Path):
    net = instantiate(OmegaConf.load(path), num_classes=7)
    assert type(net).__name__.lower() == path.stem
    assert net(torch.randn(2, 1, 28, 28)).shape == (2, 7)
    default_shapes = [p.shape for p in type(net)(num_classes=7).parameters()]
    assert [p.shape for p in net.parameters()] == default_shapes
    assert path.read_text().startswith("# python -m experiments ")


@pytest.mark.parametrize("path", sorted(CONF.glob("optim/*.yaml")), ids=lambda p: p.stem)
def test_every_optim_yaml_makes_an_optimizer_that_steps(path: Path):
    weight = nn.Parameter(torch.ones(3))
    optimizer = instantiate(OmegaConf.load(path))([weight])
    assert type(optimizer).__name__.lower() == path.stem
    weight.square().sum().backward()
    optimizer.step()
    assert (weight < 1).all()
    assert path.read_text().startswith("# python -m experiments ")
