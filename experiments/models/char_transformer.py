"""A small causal transformer over characters, of GPT-2's blocks (Radford et al., 2019), without
dropout.

Shapes: b examples, t characters, e width, h heads.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CharTransformer(nn.Module):
    """Predicts the next character after each of up to `context`.

    Maps characters int64 [b, t] to logits [b, t, num_classes]; 632,273 parameters by default. Runs
    under `torch.func.vmap` with stacked parameters.

    Raises ValueError if a number is not positive or if the heads do not divide the width.
    """

    def __init__(
        self,
        *,
        width: int = 128,
        depth: int = 3,
        heads: int = 4,
        context: int = 128,
        num_classes: int = 81,
    ) -> None:
        if min(width, depth, heads, context, num_classes) < 1 or width % heads:
            raise ValueError(
                "CharTransformer needs numbers above zero and heads that divide its width, but got "
                f"width={width}, depth={depth}, heads={heads}, context={context}, "
                f"num_classes={num_classes}."
            )
        super().__init__()
        self.characters = nn.Embedding(num_classes, width)
        self.places = nn.Parameter(0.02 * torch.randn(context, width))
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, num_classes)
        nn.init.normal_(self.characters.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """Characters int64 [b, t] -> logits [b, t, num_classes]. Raises ValueError for more
        characters than `context`.
        """
        if x.shape[1] > len(self.places):
            raise ValueError(
                f"texts of {x.shape[1]} characters need model.context={x.shape[1]}, "
                f"not {len(self.places)}"
            )
        states = self.characters(x) + self.places[: x.shape[1]]
        return self.classifier(self.norm(self.blocks(states)))


class _Block(nn.Module):
    """Attention to what came before, then two linear layers; each adds to its input [b, t, e]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self._attend(self.norm_1(x)))
        return x + self.contract(F.gelu(self.expand(self.norm_2(x))))

    def _attend(self, x: Tensor) -> Tensor:
        q, k, v = self.queries_keys_values(x).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))  # [b, h, t, e / h]
        # Not by F.scaled_dot_product_attention: vmap takes its CPU kernel one worker at a time.
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        is_later = scores.new_ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        attended = scores.masked_fill(is_later, -torch.inf).softmax(-1) @ v
        return attended.transpose(1, 2).flatten(-2)
