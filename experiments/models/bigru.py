"""A bidirectional GRU over recordings of unequal length, padded and masked.

Cho et al., arXiv 1406.1078, in PyTorch's form: the reset gate acts on the product, so that both
products of a step need not wait for each other:

    r, z = sigmoid(W x + U h + b)
    n    = tanh(W x + r * (U h + b))
    h'   = (1 - z) * n + z * h         where there is a frame; else h' = h

`nn.GRU` is not used: PyTorch can neither stack it for `vmap` nor give it other weights by
`functional_call`, and packed sequences have sizes that depend on data.

Shapes: b examples, t frames of the longest, f features, h units, 2 directions.
"""

import math

import torch
from torch import Tensor, nn


class BiGRU(nn.Module):
    """One layer in both directions; the two last states go to a linear classifier.

    Maps recordings [b, t, f + 1] to logits [b, num_classes]: the last column is 1 in a frame and 0
    in the padding behind it, which changes nothing. 31,626 parameters by default. Runs under
    `torch.func.vmap` with stacked parameters.

    Raises ValueError if a width is not positive.
    """

    def __init__(self, *, num_features: int = 13, hidden: int = 64, num_classes: int = 10) -> None:
        if min(num_features, hidden, num_classes) < 1:
            raise ValueError(
                f"BiGRU needs widths and classes above zero, but got num_features={num_features}, "
                f"hidden={hidden}, num_classes={num_classes}."
            )
        super().__init__()
        bound = 1 / math.sqrt(hidden)
        self.inputs = nn.Linear(num_features, 2 * 3 * hidden)
        self.recurrent = nn.Parameter(torch.empty(2, hidden, 3 * hidden).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(2, 1, 3 * hidden).uniform_(-bound, bound))
        self.classifier = nn.Linear(2 * hidden, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Recordings [b, t, f + 1] -> logits [b, num_classes]."""
        features, is_frame = x[..., :-1], x[..., -1:]
        there, back = self.inputs(features).chunk(2, dim=-1)
        gates = torch.stack([there, back.flip(1)])
        # Read backwards, padding comes first, and the state is still zero when the frames begin.
        moves = torch.stack([is_frame, is_frame.flip(1)])
        h = gates.new_zeros(2, len(x), self.recurrent.shape[1])
        for gates_t, moves_t in zip(gates.unbind(2), moves.unbind(2), strict=True):
            h = h + moves_t * (self._next(gates_t, h) - h)
        return self.classifier(torch.cat([h[0], h[1]], dim=-1))

    def _next(self, gates: Tensor, h: Tensor) -> Tensor:
        """The state after a frame, [2, b, h]; `gates` [2, b, 3 h] are W x."""
        r_x, z_x, n_x = gates.chunk(3, dim=-1)
        r_h, z_h, n_h = (h @ self.recurrent + self.bias).chunk(3, dim=-1)
        n = torch.tanh(n_x + torch.sigmoid(r_x + r_h) * n_h)
        return n + torch.sigmoid(z_x + z_h) * (h - n)
