"""What the packaged classes take, of numbers, flags and choices, told before torch is imported.

The classes judge by themselves, in scripts, too. `tests/experiments/plan/test_limits.py` holds that
they refuse what is refused here, and take what is taken.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from omegaconf import DictConfig

from experiments.plan.limits.limit import (
    ABOVE_0,
    ANY,
    DECAY,
    FINITE_ABOVE_0,
    FINITE_FROM_0,
    FLAG,
    FROM_0,
    NUMBER,
    PART,
    SEED,
    SHARE,
    SIZE,
    STEPS,
    Limit,
    each,
    one_of,
    or_null,
    whole,
)
from host.errors import UserError

_HIERARCHICAL = {"hierarchical": FLAG}
_FEEDBACK = {"error_feedback": FLAG}
_CODE = {"compressor": ANY}
_TOPOLOGY = {"topology": ANY}
_SOURCE = {"source": ANY}
_OUTER = {"lr": FINITE_ABOVE_0, "momentum": DECAY}
_ADAM = {
    "lr": FINITE_FROM_0,
    "betas": each(DECAY),
    "eps": FINITE_FROM_0,
    "weight_decay": FINITE_FROM_0,
    "amsgrad": FLAG,
}
_TARGET = {"target_accuracy": or_null(PART)}

LIMITS: Mapping[str, Mapping[str, Limit]] = {
    "bagua_algos.algorithms.all_reduce.AllReduce": {
        "wire": one_of("bf16", "fp16", None, hint="; for fp8 take algo=allreduce_fp8"),
        **_HIERARCHICAL,
    },
    "bagua_algos.algorithms.async_model_average.AsyncModelAverage": {
        "interval_ms": FINITE_FROM_0,
        "warmup_steps": STEPS,
        **_HIERARCHICAL,
    },
    "bagua_algos.algorithms.choco_sgd.ChocoSGD": {"gamma": PART, **_CODE, **_TOPOLOGY},
    "bagua_algos.algorithms.compressed_all_reduce.CompressedAllReduce": {
        **_CODE,
        **_FEEDBACK,
        **_HIERARCHICAL,
    },
    "bagua_algos.algorithms.decentralized.Decentralized": {
        "interval": SIZE,
        **_TOPOLOGY,
        **_HIERARCHICAL,
    },
    "bagua_algos.algorithms.local_sgd.LocalSGD": {
        "interval": SIZE,
        "start_step": STEPS,
        "outer": ANY,
        **_CODE,
        **_FEEDBACK,
        **_HIERARCHICAL,
    },
    "bagua_algos.algorithms.low_precision_decentralized.LowPrecisionDecentralized": {
        "interval": SIZE,
        **_CODE,
        **_TOPOLOGY,
        **_HIERARCHICAL,
    },
    "bagua_algos.algorithms.power_sgd.PowerSGD": {
        "rank": SIZE,
        "min_compression_rate": FROM_0,
        "warmup_steps": STEPS,
        "seed": STEPS,
        **_FEEDBACK,
        **_HIERARCHICAL,
    },
    "bagua_algos.algorithms.qadam.QAdam": {
        "warmup_steps": SIZE,
        "precondition": FLAG,
        **_CODE,
        **_FEEDBACK,
        **_HIERARCHICAL,
    },
    "bagua_algos.algorithms.sgp.SGP": {"overlap": FLAG, **_TOPOLOGY},
    "bagua_algos.algorithms.top_k.TopK": {
        "ratio": PART,
        "momentum": DECAY,
        "momentum_masking": FLAG,
        "clip_norm": or_null(ABOVE_0),
        "warmup_steps": STEPS,
        **_FEEDBACK,
    },
    "bagua_algos.communication.topology.RandomMatching": {"seed": STEPS},
    "bagua_algos.compressors.Cast": {"wire": one_of("bf16", "fp16", "fp8_e4m3", "fp8_e5m2")},
    "bagua_algos.compressors.Largest": {"ratio": PART},
    "bagua_algos.compressors.QSGD": {
        "bits": Limit("2, 4 or 8", lambda value: value in (2, 4, 8), int),
        "group_size": SIZE,
        "seed": SEED,
    },
    "bagua_algos.outer_optimizer.Nesterov": _OUTER,
    "bagua_algos.outer_optimizer.SlowMo": _OUTER,
    "experiments.models.bert.bert": {
        "size": one_of("tiny", "base", "large"),
        "head": one_of("answers", "classes"),
        **dict.fromkeys(("num_classes", "vocabulary", "weights", "dropout"), ANY),
    },
    "experiments.models.bigru.BiGRU": {"num_features": SIZE, "hidden": SIZE, "num_classes": SIZE},
    "experiments.models.char_transformer.CharTransformer": {
        "width": SIZE,
        "depth": SIZE,
        "heads": SIZE,
        "context": SIZE,
        "num_classes": SIZE,
    },
    "experiments.models.cnn.CNN": {"channels": each(SIZE), "hidden": SIZE, "num_classes": SIZE},
    "experiments.models.fast_text.FastText": {
        "width": SIZE,
        "vocabulary": SIZE,
        "num_classes": SIZE,
    },
    "experiments.models.gpt2.gpt2": {
        "size": one_of("small", "medium", "large", "xl"),
        **dict.fromkeys(("vocabulary", "context", "dropout"), ANY),
    },
    "experiments.models.mlp.MLP": {
        "hidden": each(SIZE),
        "num_classes": SIZE,
        "norm": one_of("batch", "layer"),
    },
    "experiments.models.resnet.ResNet18": {
        "width": SIZE,
        "num_classes": SIZE,
        "stem": one_of("small", "large"),
    },
    "experiments.tasks.fashion_mnist.FashionMNIST": {"root": ANY, **_TARGET},
    "experiments.tasks.jane_austen.JaneAusten": {
        "num_validation": SIZE,
        "num_examples": ANY,
        **_SOURCE,
        **_TARGET,
    },
    "experiments.tasks.mnist5k.MNIST5k": _TARGET,
    "experiments.tasks.movie_snippets.MovieSnippets": {**_SOURCE, **_TARGET},
    "experiments.tasks.movie_snippets.MovieStates": {**_SOURCE, **_TARGET},
    "experiments.tasks.own.cifar.Cifar": {
        "root": ANY,
        "num_classes": Limit("10 or 100", lambda value: value in (10, 100), int),
        "augment": FLAG,
        **_TARGET,
    },
    "experiments.tasks.own.image_folder.ImageFolder": {
        "size": SIZE,
        "augment": FLAG,
    },
    "experiments.tasks.own.squad.Squad": {"max_tokens": whole(8)},
    "experiments.tasks.own.text.Text": {
        "context": SIZE,
        **dict.fromkeys(("path", "tokenizer", "metric"), ANY),
        **_TARGET,
    },
    "experiments.tasks.spoken_digits.SpokenDigits": {**_SOURCE, **_TARGET},
    "experiments.tasks.samplers.Balanced": {
        "random_level": SHARE,
        "shuffle": FLAG,
        "crop": FLAG,
    },
    "experiments.tasks.samplers.Shuffled": {"crop": FLAG},
    "experiments.tasks.samplers.Loading": {
        **dict.fromkeys(("sampler", "partition", "sizes"), ANY),
        "alpha": or_null(NUMBER),
        "loaders": STEPS,
        "for_tuning": FLAG,
    },
    "experiments.plan.plan.Cluster": {
        "threads_per_worker": SIZE,
        "timeout_s": Limit("more than 0 and at most 10,000,000", lambda v: 0 < v <= 1e7, float),
        "sharing": SIZE,
        "straggler": FINITE_FROM_0,
        "jitter": Limit("one of its choices or null", lambda v: v is None or is_part(v)),
        "net_plugin": one_of("bagua", None),
        "stacking": one_of("auto", "vmap", "loop", "parts", "shares"),
    },
    "experiments.plan.schedules.rise_and_fall": {
        "warmup": STEPS,
        "steps": SIZE,
        "shape": one_of("linear", "cosine"),
        "least": SHARE,
    },
    "experiments.training.torch_ddp.TorchDDP": {
        "bucket_cap_mb": or_null(ABOVE_0),
        **dict.fromkeys(("comm_hook", "comm_hook_state"), ANY),
    },
    "netsim.timeline.compute.Lognormal": {"sigma": FINITE_FROM_0, "seed": STEPS},
    "torch.optim.SGD": {
        "lr": FINITE_FROM_0,
        "momentum": FINITE_FROM_0,
        "weight_decay": FINITE_FROM_0,
        "nesterov": FLAG,
    },
    "torch.optim.Adam": _ADAM,
    "torch.optim.AdamW": _ADAM,
    "torch.optim.lr_scheduler.ConstantLR": {"factor": SHARE, "total_iters": STEPS},
    "torch.optim.lr_scheduler.CosineAnnealingLR": {"T_max": SIZE},
    "torch.optim.lr_scheduler.LinearLR": {
        "start_factor": PART,
        "end_factor": SHARE,
        "total_iters": SIZE,
    },
}
"""Of a class, by its `_target_`, and of its arguments, by their names: of all, unless it is one of
`HAVE_MORE`.
"""

HAVE_MORE = (
    "torch.",
    "experiments.tasks.own.image_folder.ImageFolder",
    "experiments.tasks.own.squad.Squad",
)
"""How the names of classes begin that take arguments without limits."""


def is_here(package: str) -> bool:
    """Whether Python finds it; it is not imported."""
    try:
        return find_spec(package) is not None
    except ValueError:  # it was made while the program runs, as `__main__` is
        return True


def is_part(value: object) -> bool:
    """Whether it is a part of a configuration, with keys of its own."""
    return isinstance(value, DictConfig)


def get(node: Any, key: str, default: Any = None) -> Any:
    """A value of a part; `default` where the part, which may be a user's own, has none."""
    return node[key] if is_part(node) and key in node else default


def target_of_part(node: Any) -> str:
    """The class of a part, by its full name; "" where it names none."""
    return str(get(node, "_target_", ""))


def check_limits(node: DictConfig, key: str) -> None:
    """Raise `UserError` for a value in `node`, or in the parts of it, that its class refuses, and
    for a class of a package that is not here.
    """
    target = str(node.get("_target_", ""))
    package = target.partition(".")[0]
    if package and not is_here(package):
        raise UserError(
            f"{key}._target_={target}: there is no package or module {package} here: install it, "
            "or start the command in its folder"
        )
    for name, value in node.items():
        if is_part(value):
            check_limits(value, f"{key}.{name}")
    limits = LIMITS.get(target, {})
    if limits and not target.startswith(HAVE_MORE):
        _check_names(node, limits, key)
    check_values(node, limits, f"{key}.")


def _check_names(node: DictConfig, limits: Mapping[str, Limit], key: str) -> None:
    for name in map(str, node):
        if name not in limits and not name.startswith("_"):  # such as _target_
            kind = str(node["_target_"]).rpartition(".")[2]
            raise UserError(f"{key}.{name} is none of {kind}'s, which are {', '.join(limits)}")


def check_values(node: DictConfig, limits: Mapping[str, Limit], prefix: str = "") -> None:
    """Raise `UserError` for a value in `node` that is beyond one of `limits`."""
    for name, limit in limits.items():
        if name in node and (said := limit.why_not(node[name])) is not None:
            raise UserError(f"{prefix}{name} {said}")
