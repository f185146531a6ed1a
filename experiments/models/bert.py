"""BERT of the library transformers, in its published sizes: Devlin et al., arXiv 1810.04805."""

from pathlib import Path
from typing import Any

from torch import nn

from experiments.models.logits import Logits
from experiments.models.of_transformers import transformers
from host.errors import UserError

SIZES = {
    "tiny": (2, 128, 2),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
"""Layers, width and heads; the width inside of a layer is four times as much. Tiny: Turc et al.,
arXiv 1908.08962.
"""
HEADS = {
    "answers": "BertForQuestionAnswering",
    "classes": "BertForSequenceClassification",
}


def bert(
    *,
    size: str = "base",
    head: str = "answers",
    num_classes: int = 2,
    vocabulary: int = 30_522,
    weights: str | None = None,
    dropout: float = 0.1,
) -> nn.Module:
    """Maps what transformers calls input_ids, attention_mask and token_type_ids [b, t] to logits:
    of answers [b, 2, t], where they begin and where they end; of classes [b, num_classes].

    Args:
        size: one of `SIZES`.
        head: one of `HEADS`.
        num_classes: of the head "classes".
        vocabulary: number of tokens.
        weights: a folder of pretrained weights that transformers has written; None: drawn.
        dropout: as published.

    Raises:
        UserError: another size or head, no such folder, or the library is not installed.
    """
    library = transformers()
    if size not in SIZES or head not in HEADS:
        raise UserError(
            f"BERT has sizes {', '.join(SIZES)} and heads {', '.join(HEADS)}, and got "
            f"model.size={size} model.head={head}"
        )
    kind = getattr(library, HEADS[head])
    given: dict[str, Any] = {
        "num_labels": 2 if head == "answers" else num_classes,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
    }
    if weights is not None:
        if not (Path(weights) / "config.json").is_file():
            raise UserError(
                f"model.weights={weights} has no config.json: put a model of transformers there, "
                f"such as https://huggingface.co/google-bert/bert-{size}-uncased"
            )
        pretrained = kind.from_pretrained(weights, local_files_only=True, **given)
        return Logits(pretrained.train())  # it comes in evaluation mode, without dropout
    layers, width, heads = SIZES[size]
    config = library.BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        **given,
    )
    return Logits(kind(config))
