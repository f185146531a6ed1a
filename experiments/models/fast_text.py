"""A text's mean embedding, then a linear classifier: the model of fastText without its n-grams.

Joulin et al., Bag of tricks for efficient text classification, EACL 2017.

Shapes: b texts, t tokens, e width.
"""

from torch import Tensor, nn

from experiments.tasks.word_pieces import PADDING_TOKEN


class FastText(nn.Module):
    """Embeddings of `vocabulary` tokens, learnt from nothing.

    Maps tokens int64 [b, t], padded with 0, to logits [b, num_classes]; 488,386 parameters by
    default. Runs under `torch.func.vmap` with stacked parameters.

    Raises ValueError if a number is not positive.
    """

    def __init__(self, *, width: int = 16, vocabulary: int = 30_522, num_classes: int = 2) -> None:
        if min(width, vocabulary, num_classes) < 1:
            raise ValueError(
                "FastText needs numbers above zero, but got "
                f"width={width}, vocabulary={vocabulary}, num_classes={num_classes}."
            )
        super().__init__()
        self.embeddings = nn.Embedding(vocabulary, width)
        self.classifier = nn.Linear(width, num_classes)
        nn.init.normal_(self.embeddings.weight, std=0.1)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens int64 [b, t] -> logits [b, num_classes]."""
        is_token = (tokens != PADDING_TOKEN).unsqueeze(-1)
        embeddings = self.embeddings(tokens) * is_token
        return self.classifier(embeddings.sum(-2) / is_token.sum(-2).clamp(min=1))
