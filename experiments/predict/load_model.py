"""The model of a prediction, from words of a command line, on the meta device:

    model=vgg16
    model=gpt2 model.config.n_layer=24 tokens=512
    model._target_=torch.nn.Linear model.in_features=8 model.out_features=2 features=8

`model` is a file of experiments/predict/models; any other one is named by `model._target_`, with
its arguments. `tokens`, `image` or `features` say what one example is.

torch takes seconds to import. It is imported once there is something to trace.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from experiments.plan.part import make_part
from experiments.predict.step_trace import StepTrace
from host.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor, nn

FOLDER = Path(__file__).parent / "models"
INPUTS = {"tokens": "128", "image": "3x224x224", "features": "784"}
"""The words for an example, and an example of each."""


def known_models() -> list[str]:
    """The names that `model` may have."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def is_of_model(key: str) -> bool:
    """Whether a word of a command line is read here."""
    return key in ("model", *INPUTS) or key.startswith("model.")


def trace_model(
    words: Mapping[str, str], batch_size: int, *, fused_attention: bool = True
) -> StepTrace:
    """A training step of the model that `words` name, such as {"model": "vgg16"}.

    Raises `UserError` for one that is not known, cannot be made or cannot be traced.
    """
    return _trace(tuple(sorted(words.items())), batch_size, fused_attention)


@cache
def _trace(named: tuple[tuple[str, str], ...], batch_size: int, fused_attention: bool) -> StepTrace:
    from experiments.predict.trace import trace_step

    name, model, inputs = make_model(dict(named), batch_size, "meta")
    return trace_step(name, model, inputs, fused_attention=fused_attention)


def make_model(
    words: Mapping[str, str], batch_size: int, device: str
) -> tuple[str, nn.Module, dict[str, Tensor]]:
    """The name of the model that `words` name, itself, and a batch of zeros by the names that its
    forward has for them. Raises as `trace_model`.
    """
    import torch

    words = {key: text for key, text in words.items() if is_of_model(key)}
    config = model_config(words)
    example = config.pop("input", {}) | {key: words[key] for key in INPUTS if key in words}
    name = words.get("model") or config["_target_"].rsplit(".", 1)[-1].replace("from_config", "")
    name = name or config["_target_"].split(".")[-2]
    try:
        with torch.device(device):
            model = make_part(OmegaConf.create(config), "model")
    except (RuntimeError, NotImplementedError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise UserError(f"model: it cannot be made without numbers: {reason}") from error
    return name, model.to(device).train(), _inputs(model, example, batch_size, device)


def model_config(words: Mapping[str, str]) -> dict[str, Any]:
    """What the model is made of. Raises `UserError` for one that is not known."""
    prefix = "model."
    if len(examples := [f"{key}={words[key]}" for key in INPUTS if key in words]) > 1:
        raise UserError(f"{' and '.join(examples)} both say what one example is: leave one")
    changes = OmegaConf.from_dotlist(
        [f"{key.removeprefix(prefix)}={text}" for key, text in words.items() if prefix in key]
    )
    name = words.get("model")
    if name is not None and name not in known_models():
        raise UserError(
            f"model={name} has no shapes: choose model={', '.join(known_models())}, or any other "
            "by model._target_=PACKAGE.CLASS and tokens=128, image=3x224x224 or features=784"
        )
    known = OmegaConf.create({}) if name is None else OmegaConf.load(FOLDER / f"{name}.yaml")
    merged = OmegaConf.merge(known, changes)
    assert isinstance(merged, DictConfig)
    if "_target_" not in merged:
        raise UserError("model is missing: choose one, such as model=vgg16")
    values: Any = OmegaConf.to_container(merged)
    return values


def _inputs(
    model: nn.Module, example: Mapping[str, Any], batch_size: int, device: str
) -> dict[str, Tensor]:
    """A batch by the names that the model's forward has."""
    if not example:
        raise UserError(
            "what one example is cannot be told from the model: say tokens=128, image=3x224x224 or "
            "features=784"
        )
    import torch

    key, text = list(example.items())[-1]
    try:
        shape = [int(part) for part in str(text).split("x")]
        if min(shape) < 1 or len(shape) != (3 if key == "image" else 1):
            raise ValueError(text)
    except ValueError:
        raise UserError(f"{key}={text} is no example: write it as {key}={INPUTS[key]}") from None
    dtype = torch.long if key == "tokens" else torch.float32
    batch = torch.zeros(batch_size, *shape, dtype=dtype, device=device)
    parameters = inspect.signature(model.forward).parameters
    inputs = {"input_ids" if "input_ids" in parameters else "": batch}
    return inputs
