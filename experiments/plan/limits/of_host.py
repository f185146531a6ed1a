"""What a run needs that this host may not have: files, libraries, a GPU."""

from collections.abc import Callable, Mapping

from omegaconf import DictConfig

from experiments.plan.limits.of_classes import get, is_here, target_of_part
from experiments.plan.limits.of_models import CLASSES
from experiments.tasks.own import files
from experiments.tasks.word_pieces import (
    NO_SAFETENSORS,
    NO_TOKENIZERS,
    NO_TRANSFORMERS,
    package_folder,
)
from host.errors import UserError
from host.gpus import check_driver

_OWN = "experiments.tasks.own"

_FILES: Mapping[str, tuple[str, Callable[[DictConfig], object]]] = {
    f"{_OWN}.cifar.Cifar": (
        "root",
        lambda task: files.cifar_folder(task.root, get(task, "num_classes") or 10),
    ),
    f"{_OWN}.glue.Glue": (
        "root",
        lambda task: (
            get(task, "name") in files.GLUE_TASKS and files.glue_files(task.root, task.name)
        ),
    ),
    f"{_OWN}.image_folder.ImageFolder": (
        "root",
        lambda task: files.check_any_picture(task.root),
    ),
    f"{_OWN}.speech_commands.SpeechCommands": (
        "root",
        lambda task: files.check_any_recording(task.root),
    ),
    f"{_OWN}.squad.Squad": ("root", lambda task: files.squad_files(task.root)),
    f"{_OWN}.text.Text": ("path", lambda task: files.check_any_text(task.path)),
}
"""Of a task, the key that names its files, and what raises where they are not there."""

_LIBRARIES: Mapping[str, tuple[str, str]] = {
    CLASSES["bert_base"]: ("transformers", NO_TRANSFORMERS),
    CLASSES["gpt2_small"]: ("transformers", NO_TRANSFORMERS),
    CLASSES["minilm"]: ("transformers safetensors", NO_SAFETENSORS),
    CLASSES["minilm_top"]: ("transformers safetensors", NO_SAFETENSORS),
}
"""Of a model, the packages that it needs, and what is said where one is not there."""

_OF_TOKENS = (f"{_OWN}.glue.Glue", f"{_OWN}.squad.Squad")
"""Tasks that need a tokenizer: without one of the user's, the one that comes with MiniLM."""


def check_host(config: DictConfig) -> None:
    """Raise `UserError` where this host does not have what a run of `config` reads or imports, as
    far as it needs no torch to be seen.
    """
    _check_libraries(config)
    _check_files(config.task)


def check_gpu(config: DictConfig) -> None:
    """Raise `UserError` where `config` computes on a GPU, and there cannot be one."""
    device = get(config.backend, "device") if config.device is None else config.device
    if device == "cuda":
        check_driver()


def _check_files(task: DictConfig) -> None:
    if (target := target_of_part(task)) not in _FILES:
        return
    key, check = _FILES[target]
    if not isinstance(get(task, key), str):
        return
    try:
        check(task)
    except OSError as error:
        raise UserError(f"{error.filename} cannot be read ({error.strerror})") from error


def _check_libraries(config: DictConfig) -> None:
    model, task = target_of_part(config.model), target_of_part(config.task)
    packages, sentence = _LIBRARIES.get(model, ("", ""))
    if not all(map(is_here, packages.split())):
        raise UserError(sentence)
    tokenizer = get(config.task, "tokenizer")
    has_tokens = task in _OF_TOKENS or (task == f"{_OWN}.text.Text" and tokenizer is not None)
    if has_tokens and not is_here("tokenizers"):
        raise UserError(NO_TOKENIZERS)
    of_minilm = (CLASSES["minilm"], CLASSES["minilm_top"])
    if model in of_minilm or (task in _OF_TOKENS and tokenizer is None):
        package_folder()  # raises
