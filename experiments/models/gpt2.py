"""GPT-2 of the library transformers, in its published sizes: Radford et al., "Language Models are
Unsupervised Multitask Learners", 2019.
"""

from torch import nn

from experiments.models.logits import Logits
from experiments.models.of_transformers import transformers
from host.errors import UserError

SIZES = {
    "small": (12, 768, 12),
    "medium": (24, 1024, 16),
    "large": (36, 1280, 20),
    "xl": (48, 1600, 25),
}
"""Layers, width and heads."""


def gpt2(
    *, size: str = "small", vocabulary: int = 256, context: int = 1024, dropout: float = 0.1
) -> nn.Module:
    """Maps tokens [b, t] to logits [b, t, vocabulary] of the tokens that follow.

    Args:
        size: one of `SIZES`.
        vocabulary: number of tokens; 256: bytes, as the task text has them.
        context: the most places t.
        dropout: as published.

    Raises:
        UserError: another size, or the library is not installed.
    """
    library = transformers()
    if size not in SIZES:
        raise UserError(f"GPT-2 has sizes {', '.join(SIZES)}, and got model.size={size}")
    layers, width, heads = SIZES[size]
    config = library.GPT2Config(
        vocab_size=vocabulary,
        n_positions=context,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    return Logits(library.GPT2LMHeadModel(config))
