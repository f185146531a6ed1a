"""What is refused before torch is imported, and that the classes, which judge after it, agree."""

import inspect
import warnings
from pathlib import Path

import pytest
import torch
from hydra.errors import InstantiationException
from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from bagua_algos.communication.patterns import PATTERNS
from bagua_algos.communication.streams import MOST_STREAMS
from bagua_algos.compressors.cast import WIRE_DTYPES
from bagua_algos.worker_axis.stacking import WAYS
from experiments.models import bert, gpt2, mlp
from experiments.plan import part
from experiments.plan.compose import compose_config
from experiments.plan.factory import make_plan
from experiments.plan.limits import limit as limits
from experiments.plan.limits import of_configs
from experiments.plan.limits.of_classes import HAVE_MORE, LIMITS, check_limits
from experiments.plan.limits.of_pairs import AUTO
from experiments.plan.messages import choices
from experiments.plan.overrides import normalize_overrides
from experiments.plan.plan import BAGUA, DEVICES, MEASURED
from experiments.plan.schedules import SHAPES
from experiments.plan.schema import GROUPS
from host.errors import UserError
from tests.experiments.plan.told import told

WITHIN = {
    limits.STEPS: [0, 7],
    limits.SIZE: [1, 4],
    limits.SEED: [0, 2**32 - 1],
    limits.SHARE: [0, 1, 0.5],
    limits.PART: [1, 0.25],
    limits.DECAY: [0.0, 0.99],
    limits.FROM_0: [0, 2.5, float("inf")],
    limits.FINITE_FROM_0: [0, 2.5],
    limits.FINITE_ABOVE_0: [1e-9, 4],
    limits.ABOVE_0: [1e-9, float("inf")],
    limits.FLAG: [True, False],
    "Cifar.num_classes": [10, 100],
    "Cluster.jitter": [None],
    "Cluster.timeout_s": [0.5, 10_000_000],
    "Loading.alpha": [None],
    "QSGD.bits": [2, 4, 8],
    "Squad.max_tokens": [8],
}
"""Of a limit, or of one argument of a class."""

BEYOND = {
    limits.STEPS: [-1, 1.5, "x"],
    limits.SIZE: [0, -3, 1.5, "x"],
    limits.SEED: [-1, 2**32, 0.5],
    limits.SHARE: [-0.1, 1.1, float("nan"), "x"],
    limits.PART: [0, 1.1, float("nan"), "x"],
    limits.DECAY: [-0.1, 1, float("nan"), "x"],
    limits.FROM_0: [-1, float("nan"), "x"],
    limits.FINITE_FROM_0: [-1, float("inf"), float("nan"), "x"],
    limits.FINITE_ABOVE_0: [0, -1, float("inf"), float("nan"), "x"],
    limits.ABOVE_0: [0, -1, float("nan"), "x"],
    limits.FLAG: ["no", "false", 0.5],
    "Cifar.num_classes": [11, 10.5],
    "Cluster.jitter": [5],
    "Cluster.timeout_s": [0, 10_000_001, float("nan"), "x"],
    "Loading.alpha": ["x"],
    "QSGD.bits": [0, 3, 2.5, "x"],
    "Squad.max_tokens": [7, 8.5],
}
OF_TORCH = ("torch.",)
"""It takes infinities, NaN, and numbers of steps that are no such, which end in no training."""

NEEDS_FILES = ("experiments.tasks.own.",)
"""Whose objects are not made here: tests of their own hold what they refuse."""

CHOICES = [
    ("bagua_algos.algorithms.all_reduce.AllReduce", "wire", ("bf16", "fp16", None)),
    ("bagua_algos.compressors.Cast", "wire", WIRE_DTYPES),
    ("experiments.models.bert.bert", "size", bert.SIZES),
    ("experiments.models.bert.bert", "head", bert.HEADS),
    ("experiments.models.gpt2.gpt2", "size", gpt2.SIZES),
    ("experiments.models.mlp.MLP", "norm", mlp.NORMS),
    ("experiments.models.resnet.ResNet18", "stem", ("small", "large")),
    ("experiments.plan.plan.Cluster", "net_plugin", (BAGUA, None)),
    ("experiments.plan.plan.Cluster", "stacking", (MEASURED, *WAYS)),
    ("experiments.plan.schedules.rise_and_fall", "shape", SHAPES),
]


def nodes() -> dict[str, tuple[str, DictConfig]]:
    """A part of a packaged configuration for each class that has limits, and its group."""
    found = {}

    def visit(node: object, group: str) -> None:
        if isinstance(node, DictConfig):
            target = str(node.get("_target_"))
            if target in LIMITS:
                found.setdefault(target, (group, node))
            for value in node.values():
                visit(value, group)

    for words in (
        *(["algo=diloco_int8"], ["model=char_transformer", "model.heads=1"]),
        *([f"{group}={choice}"] for group in GROUPS for choice in choices(group)),
        ["algo=qsgd"],
        *(["algo=top_k"], ["algo=bytegrad", "algo.compressor=largest"]),
        ["algo=allreduce_fp8"],
        *(["algo=decentralized", f"algo.topology={name}"] for name in choices("algo/topology")),
        ["data.sampler=balanced", "data.sampler.random_level=0"],
        ["cluster.jitter=lognormal"],
    ):
        config = compose_config(["algo=allreduce", *words])
        OmegaConf.set_struct(config, False)
        for group in GROUPS:
            visit(OmegaConf.create(without_missing(config[group])), group)
    return found


def without_missing(node: DictConfig) -> dict:
    return {
        key: without_missing(node[key]) if isinstance(node[key], DictConfig) else node[key]
        for key in node
        if not OmegaConf.is_missing(node, key)
    }


NODES = nodes()
CASES = [
    pytest.param(target, name, limit, id=f"{target.rpartition('.')[2]}.{name}")
    for target, own in LIMITS.items()
    for name, limit in own.items()
    if limit is not limits.ANY and (target, name) not in {case[:2] for case in CHOICES}
]


def test_every_class_that_has_limits_stands_in_a_packaged_configuration():
    assert set(NODES) == set(LIMITS)


@pytest.mark.parametrize("target", [name for name in LIMITS if not name.startswith(HAVE_MORE)])
def test_all_arguments_of_a_class_are_known(target):
    parameters = inspect.signature(get_object(target)).parameters
    assert set(LIMITS[target]) == {
        name for name, own in parameters.items() if own.kind is own.KEYWORD_ONLY
    }


def takes(target: str, name: str, value: object) -> bool:
    """Whether the class itself takes it, after what is looked at before torch is imported."""
    group, node = NODES[target]
    config = node.copy()
    OmegaConf.update(config, name, value, force_add=True)
    try:
        part._check_kinds_of(config, group)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of codes without error feedback
            made = instantiate(config)
            if config.get("_partial_"):
                parameters = [torch.nn.Parameter(torch.zeros(2))]
                made(torch.optim.SGD(parameters, lr=0.1) if group == "schedule" else parameters)
    except (UserError, InstantiationException, ValueError, ArithmeticError):
        return False
    return True


def refuses(target: str, name: str, value: object) -> bool:
    group, node = NODES[target]
    config = node.copy()
    OmegaConf.update(config, name, value, force_add=True)
    try:
        check_limits(config, group)
    except UserError as error:
        assert str(error).startswith(f"{group}.{name} ") or f".{name} " in str(error)
        return True
    return False


def examples(target: str, name: str, limit: limits.Limit, of: dict) -> list:
    """Those of the argument, or of the limit that it has where its value is not null."""
    plain = limits.Limit(limit.said, limit.holds, limit.kind)
    values = of.get(f"{target.rpartition('.')[2]}.{name}") or of[plain]
    if limit.is_list:
        return [OmegaConf.create([value, value]) for value in values]
    return [*values, *([None] if limit.or_null and of is WITHIN else [])]


@pytest.mark.parametrize(("target", "name", "limit"), CASES)
def test_a_class_takes_what_is_within_its_limits(target, name, limit):
    for value in examples(target, name, limit, WITHIN):
        assert not refuses(target, name, value)
        if not target.startswith(NEEDS_FILES):
            assert takes(target, name, value), value


@pytest.mark.parametrize(("target", "name", "limit"), CASES)
def test_a_class_refuses_what_is_beyond_its_limits(target, name, limit):
    for value in examples(target, name, limit, BEYOND):
        assert refuses(target, name, value)
        if not target.startswith(OF_TORCH + NEEDS_FILES):
            assert not takes(target, name, value), value


@pytest.mark.parametrize(("target", "name", "of_class"), CHOICES)
def test_the_choices_are_those_of_the_class(target, name, of_class):
    limit = LIMITS[target][name]
    assert [value for value in of_class if limit.why_not(value) is not None] == []
    assert limit.why_not("another") is not None
    known = ", ".join("null" if value is None else value for value in of_class)
    assert set(limit.said.partition(";")[0].removeprefix("one of ").split(", ")) == set(
        known.split(", ")
    )


def test_the_choices_of_a_run_are_those_of_the_library():
    run = of_configs._RUN
    taken = [n for n in (-1, 0, *range(1, 20), AUTO) if run["streams"].why_not(n) is None]
    assert taken == [*range(1, MOST_STREAMS + 1), AUTO]
    assert run["streams"].why_not(True) is not None
    for limit, known in ((run["pattern"], PATTERNS), (run["device"], DEVICES)):
        assert set(known) <= set(limit.said.removeprefix("one of ").split(", ")) <= {*known, "null"}


@pytest.mark.parametrize("algo", choices("algo"))
def test_what_is_known_of_an_algorithm_is_what_its_class_says(algo):
    config = compose_config([f"algo={algo}"])
    plan = make_plan(config, Path("a run's folder, which a plan does not touch"))
    assert of_configs._parts(config, plan.net) == plan.parts


REFUSED = [
    (["algo=local_sgd", "algo.interval=0"], "algo.interval must be a whole number of at least 1"),
    (["algo=qadam", "optim=sgd"], "algo=qadam continues torch.optim.Adam or AdamW, got optim=sgd"),
    (["algo=top_k", "algo.momentum=0.9", "optim.momentum=0.9"], "give optim.momentum=0"),
    (["algo=top_k", "algo.momentum=0.9", "algo.error_feedback=false"], "what was not sent"),
    (["algo=local_sgd", "algo.compressor=qsgd"], "take algo=diloco_int8, or algo.compressor=null"),
    (["algo=local_sgd", "algo.error_feedback=true"], "is of a compressor, and there is none"),
    (["algo=sgp", "algo.topology=shift_one", "workers=3"], "give workers an even number, not 3"),
    (["algo=allreduce", "algo.hierarchical=true"], "choose net=two_sites, or"),
    (["algo=torch_ddp", "backend=sim"], "torch_ddp is PyTorch's own code, which needs real"),
    (["algo=torch_ddp_bf16", "streams=2"], "PyTorch's hooks have one stream"),
    (["algo=torch_ddp_powersgd", "checkpoint_every=1"], "leave checkpoint_every=0"),
    (["algo=async", "backend=sim", "precision=float16"], "take precision=bfloat16"),
    (["algo=local_sgd", "data.partition=by_class", "data.sizes=unequal"], "averages models"),
    (["algo=allreduce", "data.partition=dirichlet"], "data.partition=dirichlet needs a number"),
    (
        ["algo=allreduce", "data.partition=by_class", "data.sampler=balanced"],
        "take data.sampler=sh",
    ),
    (["algo=allreduce", "backend=sim", "autotune=true"], "autotune=true measures real workers'"),
    (["algo=allreduce", "backend=gloo", "cluster.straggler=1"], "is of simulated workers: leave"),
    (["algo=allreduce", "backend=gloo", "cluster.sharing=3"], "leave cluster.sharing=1, or take"),
    (
        ["algo=allreduce", "backend=gloo", "cluster.stacking=loop"],
        "leave cluster.stacking=auto, or",
    ),
    (["algo=allreduce", "backend=sim", "profile=nowhere.yaml"], "cannot be read (there is no such"),
    (["algo=allreduce", "streams=0"], "streams must be 1 to 16, or auto, got 0"),
    (["algo=allreduce", "pattern=tree"], "pattern must be one of ring, halving_doubling, direct"),
    (["algo=allreduce", "optim.lr=nan"], "optim.lr must be at least 0 and finite, got nan"),
    (["algo=allreduce", "optim.lr=[0.1]"], "optim.lr takes a number, not [0.1]"),
    (["algo=allreduce", "model=mlp", "model.hidden=9"], "model.hidden takes a list, as [9]"),
    (
        ["algo=allreduce", "target.f1=1", "target.loss=1"],
        "got target.f1 and target.loss: leave one",
    ),
    (["algo=allreduce", "target.loss=1", "target_accuracy=0.9"], "target_accuracy and target.loss"),
    (
        ["algo=allreduce", "schedule=linear_warmup", "schedule.total_iters=0"],
        "schedule.total_iters",
    ),
    (
        ["algo=allreduce", "model._target_=no_such.Net"],
        "there is no package or module no_such here",
    ),
    (["algo=allreduce", "+algo.rank=2"], "algo.rank is none of AllReduce's, which are wire, hier"),
    (["algo=allreduce", "+task.root=x"], "task.root is none of MNIST5k's, which are target_acc"),
    (
        ["algo=allreduce", "target=${workers}"],
        "target has metrics: give one, as target.loss=2, got",
    ),
    (["algo=allreduce", "tracker=diary"], "tracker must be one of tensorboard, mlflow, wandb"),
]

OF_RUNS = ("tracker=diary", "profile=nowhere.yaml")
"""What a run alone looks at, which needs no torch either."""


def test_mistakes_are_told_before_torch_is_imported():
    lines = told([words for words, _ in REFUSED])
    for line, (_, sentence) in zip(lines, REFUSED, strict=True):
        assert line.startswith("without: ")
        assert sentence in line


@pytest.mark.parametrize(
    ("words", "sentence"), [case for case in REFUSED if case[0][-1] not in OF_RUNS]
)
def test_a_plan_is_not_made_of_them(words, sentence):
    with pytest.raises(UserError) as raised:
        make_plan(compose_config(words), Path("nowhere"))
    assert sentence in str(raised.value)


@pytest.mark.parametrize("word", ["no", "Yes", "on", "OFF", "None"])
@pytest.mark.parametrize(
    "form", ["algo.precondition={}", "a.b=[1,{}]", "a.b={},1", "+a.b={{x: {}}}"]
)
def test_a_bare_word_that_would_be_a_text_is_refused(word, form):
    text = form.format(word)
    with pytest.raises(UserError, match=f"since {word} is one on a command line: write"):
        normalize_overrides([text])


@pytest.mark.parametrize(
    "text",
    [
        *("a.b='no'", 'a.b="None"', "net=none", "a.b=/x/no", "a.b=on the road", "a.b=[norm,yes1]"),
        *("trace=yes", "autotune=off", "a.b={no: 0, yes: 1}", "hydra.job.name=on"),
    ],
)
def test_other_texts_are_left(text):
    assert normalize_overrides([text]) == [text]


@pytest.mark.parametrize(
    "words",
    [
        ["algo=decentralized", "algo.topology=shift_one", "algo.hierarchical=true", "workers=6"],
        ["algo=qadam", "optim=adam", "optim._target_=torch.optim.adam.Adam"],
        ["algo=allreduce", "algo.hierarchical=0", "+optim.nesterov=1", "optim.momentum=0.9"],
        ["algo=allreduce", "~cluster.straggler"],
        ["algo=allreduce", "~data.partition", "~data.sizes"],
        ["algo=qadam", "experiment=reference", "workers=4", "backend=gloo"],
        ["algo=qadam", "experiment=real_and_simulated", "backend=gloo"],
        ["algo=qadam", "cluster.sharing=3", "cluster.stacking=loop", "backend=sim"],
    ],
    ids=lambda words: words[-1],
)
def test_what_can_be_is_not_refused(words):
    make_plan(compose_config([*words, "net=two_sites"]), Path("nowhere"))


@pytest.mark.parametrize("override", ["algo.precondition=maybe", "+optim.amsgrad=x"])
def test_a_text_where_a_class_takes_true_or_false_is_refused(override):
    key = override.removeprefix("+").partition("=")[0]
    with pytest.raises(UserError, match=f"^{key} takes true or false, not '(maybe|x)'$"):
        make_plan(compose_config(["algo=qadam", override]), Path("nowhere"))
