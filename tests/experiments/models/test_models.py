from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap

from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.stacking import Stacking
from bagua_algos.worker_axis.trial import why_not_stacked
from experiments.models.bigru import BiGRU
from experiments.models.char_transformer import CharTransformer
from experiments.models.cnn import CNN
from experiments.models.fast_text import FastText
from experiments.models.minilm import MiniLM, MiniLMTop
from experiments.models.mlp import MLP
from experiments.models.resnet import ResNet18
from experiments.tasks import word_pieces
from experiments.tasks.loading.sentence_encoder import lower_states
from tests.experiments.installed import skip_without_minilm
from tests.paths import ROOT

CONF = ROOT / "conf"
OWN = CONF / "model" / "own.yaml"
"""Which names no class: the user does."""
LARGE = {
    "bert_base": (108_893_186, {}),
    "bert_large": (334_094_338, {}),
    "gpt2_small": (124_439_808, {"vocabulary": 50_257}),
    "resnet50": (25_557_032, {}),
    "vgg16": (138_357_544, {}),
}
"""Their parameters as published (of BERT those of transformers, without the pooler), by arguments.
"""
MODELS = [MLP, CNN]
"""Those of images."""


def example(model: type[nn.Module], num_examples: int) -> Tensor:
    """What a model takes."""
    if model is BiGRU:
        lengths = torch.randint(1, 8, (num_examples, 1))
        return recordings(lengths)
    if model is CharTransformer:
        return torch.randint(7, (num_examples, 9))
    if model in (FastText, MiniLM):
        return texts(num_examples)
    if model is MiniLMTop:
        return torch.randn(num_examples, 12, 384)
    return torch.randn(num_examples, 3 if model is ResNet18 else 1, 28, 28)


def recordings(lengths: Tensor, num_features: int = 13) -> Tensor:
    """Random frames [b, 7, f + 1] up to `lengths` [b, 1], marked by the last column."""
    is_frame = (torch.arange(7) < lengths).float().unsqueeze(-1)
    features = torch.randn(len(lengths), 7, num_features) * is_frame
    return torch.cat([features, is_frame], -1)


def texts(num_examples: int) -> Tensor:
    """Random words between [CLS] and [SEP], then padding."""
    tokens = torch.randint(2000, 3000, (num_examples, 12))
    tokens[:, 0], tokens[:, 8], tokens[:, 9:] = 101, 102, 0
    return tokens


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("num_classes", [2, 10])
def test_shapes_and_size(model: type[nn.Module], num_classes: int):
    net = model(num_classes=num_classes)
    assert net(torch.randn(3, 1, 28, 28)).shape == (3, num_classes)
    assert 300_000 < sum(p.numel() for p in net.parameters()) < 1_500_000
    assert any(isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d) for m in net.modules())


@pytest.mark.parametrize("model", [*MODELS, CharTransformer, FastText])
def test_the_parameter_count_in_the_docstring(model: type[nn.Module]):
    assert f"{sum(p.numel() for p in model().parameters()):,} parameters" in (model.__doc__ or "")


@pytest.mark.parametrize("model", [*MODELS, BiGRU, CharTransformer, FastText])
@pytest.mark.parametrize("training", [True, False])
def test_stacked_workers_equal_a_loop(model: type[nn.Module], training: bool):
    torch.manual_seed(0)
    workers = [model().double().train(training) for _ in range(3)]
    x_wb = torch.stack([example(model, 8) for _ in workers])
    x_wb = x_wb.double() if x_wb.is_floating_point() else x_wb
    parameters, buffers = stack_module_state(workers)
    stateless = model().to("meta").train(training)

    def forward(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(stateless, (p, b), (x,))

    stacked = vmap(forward)(parameters, buffers, x_wb)
    stacked.square().sum().backward()
    for w, worker in enumerate(workers):
        alone = worker(x_wb[w])
        torch.testing.assert_close(stacked[w], alone)
        alone.square().sum().backward()
        for name, parameter in worker.named_parameters():
            gradient = parameters[name].grad
            assert gradient is not None
            torch.testing.assert_close(gradient[w], parameter.grad)
        for name, buffer in worker.named_buffers():
            torch.testing.assert_close(buffers[name][w], buffer)
    means = [buffer for name, buffer in buffers.items() if name.endswith("running_mean")]
    assert all(bool(mean.any()) == training for mean in means)
    assert bool(means) == (model in MODELS)


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


@pytest.mark.parametrize("name", LARGE)
def test_a_published_model_has_as_many_parameters(name):
    if name.startswith(("bert", "gpt2")):
        pytest.importorskip("transformers", reason="the extra text is not installed")
    with torch.device("meta"):
        model = instantiate(OmegaConf.load(CONF / "model" / f"{name}.yaml"), **LARGE[name][1])
    assert sum(p.numel() for p in model.parameters()) == LARGE[name][0]


SMALL = {p for p in CONF.glob("model/*.yaml") if p.stem not in LARGE} - {OWN}


@pytest.mark.parametrize("path", sorted(SMALL), ids=lambda p: p.stem)
def test_every_model_yaml(path: Path):
    if path.stem.startswith("minilm"):
        skip_without_minilm()
    net = instantiate(OmegaConf.load(path), num_classes=7)
    # A variant's file adds to the name of its class, as mlp_layer_norm does.
    assert path.stem.replace("_", "").startswith(type(net).__name__.lower())
    x = example(type(net), 2)
    assert net(x).shape == (*(x.shape if type(net) is CharTransformer else (2,)), 7)
    default_shapes = [p.shape for p in type(net)(num_classes=7).parameters()]
    assert [p.shape for p in net.parameters()] == default_shapes
    assert path.read_text().startswith("# python -m experiments ")


@pytest.mark.parametrize("path", sorted(CONF.glob("optim/*.yaml")), ids=lambda p: p.stem)
def test_every_optim_yaml_makes_an_optimizer_that_steps(path: Path):
    weight = nn.Parameter(torch.ones(3))
    optimizer = instantiate(OmegaConf.load(path))([weight])
    of_class = {"plain_sgd": "sgd"}.get(path.stem, path.stem)  # the others have their class's name
    assert type(optimizer).__name__.lower() == of_class
    weight.square().sum().backward()
    optimizer.step()
    assert (weight < 1).all()
    assert path.read_text().startswith("# python -m experiments ")


@pytest.mark.parametrize("model", [BiGRU, CharTransformer])
def test_the_parameter_count_of_a_model_of_sequences(model: type[nn.Module]):
    assert f"{sum(p.numel() for p in model().parameters()):,} parameters" in (model.__doc__ or "")


def test_the_gru_is_pytorchs_over_packed_sequences():
    torch.manual_seed(0)
    ours = BiGRU(num_features=5, hidden=6, num_classes=3).double()
    lengths = torch.tensor([7, 1, 4])
    x = recordings(lengths.unsqueeze(1), num_features=5).double()
    theirs = nn.GRU(5, 6, batch_first=True, bidirectional=True).double()
    with torch.no_grad():
        for direction, suffix in enumerate(["", "_reverse"]):
            rows = slice(18 * direction, 18 * (direction + 1))
            getattr(theirs, f"weight_ih_l0{suffix}").copy_(ours.inputs.weight[rows])
            getattr(theirs, f"bias_ih_l0{suffix}").copy_(ours.inputs.bias[rows])
            getattr(theirs, f"weight_hh_l0{suffix}").copy_(ours.recurrent[direction].T)
            getattr(theirs, f"bias_hh_l0{suffix}").copy_(ours.bias[direction, 0])
    packed = nn.utils.rnn.pack_padded_sequence(
        x[..., :-1], lengths, batch_first=True, enforce_sorted=False
    )
    _, (there, back) = theirs(packed)
    torch.testing.assert_close(ours(x), ours.classifier(torch.cat([there, back], -1)))


def test_the_blocks_are_pytorchs_encoder_layers():
    torch.manual_seed(0)
    ours = CharTransformer(width=8, depth=2, heads=2, context=6, num_classes=5).double()
    x = torch.randint(5, (3, 6))
    states = ours.characters(x) + ours.places
    mask = nn.Transformer.generate_square_subsequent_mask(6, dtype=torch.float64)
    for block in ours.blocks:
        theirs = nn.TransformerEncoderLayer(
            *(8, 2, 32), dropout=0, activation="gelu", batch_first=True, norm_first=True
        ).double()
        names = ["self_attn.in_proj_{}", "self_attn.out_proj.{}", "linear1.{}", "linear2.{}"]
        names += ["norm1.{}", "norm2.{}"]
        parts = [block.queries_keys_values, block.mix, block.expand, block.contract]
        parts += [block.norm_1, block.norm_2]
        theirs.load_state_dict(
            {
                name.format(kind): getattr(part, kind)
                for name, part in zip(names, parts, strict=True)
                for kind in ("weight", "bias")
            }
        )
        states = theirs(states, src_mask=mask, is_causal=True)
    torch.testing.assert_close(ours(x), ours.classifier(ours.norm(states)))


def test_the_transformer_does_not_see_what_is_to_come():
    torch.manual_seed(0)
    net = CharTransformer()
    x = torch.randint(81, (2, 128))
    changed = x.clone()
    changed[:, 64] = (x[:, 64] + 1) % 81
    before, after = net(x), net(changed)
    torch.testing.assert_close(before[:, :64], after[:, :64])
    assert (before[:, 64:] != after[:, 64:]).any(-1).all()


@pytest.mark.parametrize("wrong", [{"width": 0}, {"heads": 3}, {"context": -1}])
def test_impossible_numbers_of_the_transformer(wrong: dict[str, int]):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=rf"CharTransformer needs .*{name}={value}"):
        CharTransformer(**wrong)


@pytest.mark.parametrize("context", [1, 4])
def test_a_context_that_is_too_small_is_refused(context):
    with pytest.raises(ValueError, match=rf"5 characters need model\.context=5, not {context}"):
        CharTransformer(context=context)(torch.zeros(1, 5, dtype=torch.int64))


def test_impossible_widths_of_the_gru():
    with pytest.raises(ValueError, match=r"BiGRU needs .*hidden=0"):
        BiGRU(hidden=0)


def test_the_mean_embedding_is_of_a_text_without_its_padding():
    net, tokens = FastText(), texts(2)
    longer = torch.cat([tokens, torch.zeros(2, 5, dtype=torch.long)], 1)
    torch.testing.assert_close(net(longer), net(tokens))
    mean = net.embeddings(tokens[:, :9]).mean(1)
    torch.testing.assert_close(net(tokens), net.classifier(mean))
    assert net(torch.zeros(1, 5, dtype=torch.long)).isfinite().all()


def test_minilm_has_its_weights_and_sees_no_padding():
    skip_without_minilm()
    net = MiniLM().eval()
    x = texts(3)
    with torch.no_grad():
        torch.testing.assert_close(net(x), net(x[:, :9]), rtol=1e-4, atol=1e-5)
        films, stones = sentences("A film.", "A movie!", "Granite is an igneous rock.")
    assert films > 0.7 > 0.3 > stones


def test_stacked_minilms_are_computed_one_after_the_other():
    skip_without_minilm()
    net, x = MiniLM().eval(), texts(2)
    obstacle = why_not_stacked(net, x)
    assert obstacle is not None and "data-dependent control flow" in obstacle
    rows = StackedModel(net, 2, stacking=Stacking(way="loop"))(torch.stack([x, x.flip(0)]))
    torch.testing.assert_close(rows[0], net(x))
    torch.testing.assert_close(rows[1], rows[0].flip(0))


def test_the_top_of_minilm_on_what_is_below_is_minilm(capsys):
    skip_without_minilm()
    whole, top = MiniLM().eval(), MiniLMTop().eval()
    top.classifier = whole.classifier
    x = texts(3)
    x[1, 5:] = 0
    below = torch.from_numpy(lower_states(x.numpy())).float()
    said = "what MiniLM's lower layers make of 3 texts, which is kept"
    assert capsys.readouterr().err.splitlines()[0] == said
    with torch.no_grad():
        torch.testing.assert_close(top(below), whole(x), rtol=1e-2, atol=1e-3)  # of float16
        torch.testing.assert_close(top(below[:, :9]), top(below))
        assert (top(below) - top(below.flip(1))).abs().max() < 1e-5  # places are in the states
        assert top(torch.zeros(1, 4, 384)).isfinite().all()
    assert sum(p.numel() for p in top.parameters()) == 1_775_234


def test_stacked_tops_of_minilm_are_computed_one_after_the_other():
    skip_without_minilm()
    net, x = MiniLMTop(), torch.randn(2, 5, 384)  # in training mode: it has no dropout
    assert why_not_stacked(net, x) is not None
    rows = StackedModel(net, 2, stacking=Stacking(way="loop"))(torch.stack([x, x.flip(0)]))
    torch.testing.assert_close(rows[0], net(x))
    torch.testing.assert_close(rows[1], rows[0].flip(0))


def test_the_top_of_minilm_learns_from_tokens_alone():
    skip_without_minilm()
    net = MiniLMTop()
    x = torch.randn(3, 6, 384)
    x[0, 2:] = 0
    x[2] = 0  # a text without a token
    x.requires_grad_()
    (grad,) = torch.autograd.grad(net(x).square().sum(), x)
    assert (grad[0, :2] != 0).all() and (grad[1] != 0).all()
    assert (grad[0, 2:] == 0).all() and (grad[2] == 0).all()
    by_library = net.layer(x[:1, :2], None).mean(1)
    torch.testing.assert_close(net(x[:1]), net.classifier(by_library))


def sentences(*texts: str) -> list[float]:
    """How much the first is like each other one, by the cosine of MiniLM's states."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(word_pieces.package_folder() / "tokenizer.json"))
    net = MiniLM().eval()
    net.classifier = nn.Identity()
    tokenizer.no_padding()
    states = [net(torch.tensor([tokenizer.encode(text).ids]))[0] for text in texts]
    return [torch.cosine_similarity(states[0], other, dim=0).item() for other in states[1:]]
