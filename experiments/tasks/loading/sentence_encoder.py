"""The encoder of MiniLM with the weights that it was trained to. A model and a task build on it.

Shapes: m texts, t tokens, e width.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from experiments.tasks.word_pieces import NO_SAFETENSORS, PADDING_TOKEN, package_folder
from host.errors import UserError
from host.remaining import Work

WIDTH = 384
_AT_ONCE = 64
"""Texts of like length that go through the lower layers together."""


def encoder(**options: float | str) -> nn.Module:
    """transformers' BertModel without its pooler, in training mode; `options` are of its
    BertConfig, beside those that it was trained with.

    Raises UserError where transformers or the weights are not installed.
    """
    folder = package_folder()
    try:
        from safetensors.torch import load_file  # pyright: ignore[reportMissingImports]
        from transformers import BertConfig, BertModel  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(NO_SAFETENSORS) from error
    config = BertConfig(**json.loads((folder / "config.json").read_text()) | options)
    model = BertModel(config, add_pooling_layer=False)
    missing, _ = model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert not missing  # what is left over is the pooler, which is not used
    return model


def layers(model: nn.Module) -> nn.ModuleList:
    """Those of an `encoder`, from the lowest on."""
    found = model.get_submodule("encoder.layer")
    assert isinstance(found, nn.ModuleList)
    return found


def lower_states(tokens: NDArray[np.integer]) -> NDArray[np.float16]:
    """What the last layer is given: the states after all layers but the last, without dropout, of
    tokens [m, t], padded with 0: [m, t, e], zeros where padding is.

    By one thread, so that no pool of threads is there before a process forks. It says what is left,
    for 10,000 sentences take a minute. Raises UserError as `encoder`.
    """
    states = np.zeros((*tokens.shape, WIDTH), np.float16)
    lengths = (tokens != PADDING_TOKEN).sum(1)
    order = np.argsort(lengths, kind="stable")
    parts = [order[start : start + _AT_ONCE] for start in range(0, len(order), _AT_ONCE)]
    sizes = [float(lengths[rows].max() * len(rows)) for rows in parts]
    model = encoder().eval()
    del layers(model)[-1]
    work = Work({"states": 1.0})
    work.say(f"what MiniLM's lower layers make of {len(order):,} texts, which is kept")
    work.begin("states", sizes)
    with _one_thread(), torch.inference_mode():
        for rows, size in zip(parts, sizes, strict=True):
            longest = int(lengths[rows].max())
            x = torch.from_numpy(tokens[rows, :longest].astype(np.int64))
            is_token = x != PADDING_TOKEN
            out: Tensor = model(input_ids=x, attention_mask=is_token.long()).last_hidden_state
            states[rows, :longest] = (out * is_token.unsqueeze(-1)).half().numpy()
            work.done(size)
    return states


@contextmanager
def _one_thread() -> Iterator[None]:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
