"""The LSTM language model of Vogels et al., "PowerSGD", arXiv 1905.13727, appendix.

After the word-level example of PyTorch; the decoder's matrix is the embedding's.
"""

from torch import Tensor, nn


class LSTM(nn.Module):
    """Maps tokens [b, t] to logits [b, t, vocabulary]; 28,949,319 parameters with the 28,869 words
    of WikiText-2 that PowerSGD's authors have.
    """

    def __init__(
        self,
        *,
        vocabulary: int = 28_869,
        width: int = 650,
        num_layers: int = 3,
        dropout: float = 0.4,
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = nn.LSTM(width, width, num_layers, dropout=dropout, batch_first=True)
        self.decoder = nn.Linear(width, vocabulary)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 `tokens[b, t]` -> `[b, t, vocabulary]`."""
        states, _ = self.recurrent(self.dropout(self.embedding(tokens)))
        return self.decoder(self.dropout(states))
