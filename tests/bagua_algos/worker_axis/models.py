"""Models that tests stack."""

from torch import nn


class ByData(nn.Module):
    """Control flow that depends on data, which vmap refuses."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)

    def forward(self, x_b):
        return self.norm(self.layer(x_b)) * (2 if x_b.sum() > 0 else 1)


def normed():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
