"""Which packaged models take the examples of which packaged tasks.

`experiments.plan.model_check` tries every model, these too, and
`tests/experiments/plan/test_limits_of_models.py` holds that it takes and refuses what is said here.
"""

from collections.abc import Mapping

from omegaconf import DictConfig

from experiments.plan.limits.of_classes import target_of_part
from host.errors import UserError

_TASKS, _OWN, _MODELS = "experiments.tasks", "experiments.tasks.own", "experiments.models"
_CIFAR = f"{_OWN}.cifar.Cifar"
_CLASSIFIES = "model.head=classes"

CLASSES = {
    "cnn": f"{_MODELS}.cnn.CNN",
    "mlp": f"{_MODELS}.mlp.MLP",
    "bigru": f"{_MODELS}.bigru.BiGRU",
    "minilm": f"{_MODELS}.minilm.MiniLM",
    "minilm_top": f"{_MODELS}.minilm.MiniLMTop",
    "fast_text": f"{_MODELS}.fast_text.FastText",
    "bert_base": f"{_MODELS}.bert.bert",
    "char_transformer": f"{_MODELS}.char_transformer.CharTransformer",
    "gpt2_small": f"{_MODELS}.gpt2.gpt2",
    "resnet18": f"{_MODELS}.resnet.ResNet18",
    "resnet50": f"{_MODELS}.resnet.ResNet",
    "vgg16": f"{_MODELS}.vgg.VGG16",
}
"""The `_target_` of a choice of model; other choices have one of these, too."""

FITTING: Mapping[str, tuple[str, ...]] = {
    f"{_TASKS}.mnist5k.MNIST5k": ("cnn", "mlp"),
    f"{_TASKS}.fashion_mnist.FashionMNIST": ("cnn", "mlp"),
    f"{_TASKS}.spoken_digits.SpokenDigits": ("bigru",),
    f"{_TASKS}.movie_snippets.MovieSnippets": ("minilm", "fast_text", f"bert_base {_CLASSIFIES}"),
    f"{_TASKS}.movie_snippets.MovieStates": ("minilm_top",),
    f"{_TASKS}.jane_austen.JaneAusten": ("char_transformer", "gpt2_small"),
    f"{_OWN}.text.Text": ("char_transformer", "gpt2_small"),
    _CIFAR: ("resnet18", "resnet50"),
    f"{_OWN}.image_folder.ImageFolder": ("resnet18", "resnet50", "vgg16"),
    f"{_OWN}.speech_commands.SpeechCommands": ("resnet18", "resnet50"),
    f"{_OWN}.squad.Squad": ("bert_base",),
    f"{_OWN}.glue.Glue": (f"bert_base {_CLASSIFIES}",),
}
"""Of a task, the choices whose class takes its examples, and no others of `CLASSES` do; behind a
choice, what else is to be given.
"""

_PLAIN = {
    *("_target_", "augment", "context", "max_tokens", "metric", "name", "num_classes"),
    *("num_examples", "num_validation", "path", "root", "size", "source", "target_accuracy"),
    "tokenizer",
}
"""Keys of tasks that leave examples and losses what they are, as `collate` does not."""

NUM_CLASSES: Mapping[str, int] = {
    f"{_TASKS}.mnist5k.MNIST5k": 10,
    f"{_TASKS}.fashion_mnist.FashionMNIST": 10,
    f"{_TASKS}.spoken_digits.SpokenDigits": 10,
    f"{_TASKS}.movie_snippets.MovieSnippets": 2,
    f"{_TASKS}.movie_snippets.MovieStates": 2,
    f"{_TASKS}.jane_austen.JaneAusten": 81,
}
"""Of a task, where it needs no files to be known."""

NUM_OUTPUTS: Mapping[str, int] = {
    CLASSES["cnn"]: 10,
    CLASSES["mlp"]: 10,
    CLASSES["bigru"]: 10,
    CLASSES["minilm"]: 2,
    CLASSES["minilm_top"]: 2,
    CLASSES["fast_text"]: 2,
    CLASSES["char_transformer"]: 81,
}
"""Of a model whose configuration does not say it."""


def check_model_of_task(config: DictConfig) -> None:
    """Raise `UserError` for a packaged model that does not take what a packaged task gives, or has
    another number of outputs.
    """
    task, model = target_of_part(config.task), target_of_part(config.model)
    if task not in FITTING or model not in CLASSES.values() or not _PLAIN.issuperset(config.task):
        return
    names = config.names
    if model not in (CLASSES[choice.split()[0]] for choice in FITTING[task]):
        raise UserError(
            f"model={names.model} does not take examples of task={names.task}: choose "
            f"model={' or '.join(FITTING[task])}, or one of your own"
        )
    key, number = _num_outputs(config.model, model)
    needed = _num_classes(config.task, task)
    if None not in (number, needed) and number != needed:
        plus = "" if key in config.model else "+"
        raise UserError(
            f"model={names.model} has {number} outputs for each label, and task={names.task} has "
            f"{needed} classes: give {plus}model.{key}={needed}"
        )


def _num_outputs(node: DictConfig, target: str) -> tuple[str, int | None]:
    """By which key it is set, and what it is; None: not known."""
    if target == CLASSES["gpt2_small"]:
        return "vocabulary", node.get("vocabulary")
    if target == CLASSES["bert_base"] and node.get("head") != "classes":
        return "num_classes", None
    return "num_classes", node.get("num_classes", NUM_OUTPUTS.get(target))


def _num_classes(node: DictConfig, target: str) -> int | None:
    if target == _CIFAR:
        return node.get("num_classes")
    if target == f"{_OWN}.text.Text":
        return 256 if node.get("tokenizer") is None else None
    return NUM_CLASSES.get(target)
